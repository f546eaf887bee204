"""The ledger of the model registry: every decision on a model, as a tag of the registered model.

MLflow keeps no history of its aliases. As tags, the decisions are visible to all users of the
registry.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from retrain.step import digest_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

    from retrain.registry.sqlite_reader import Model

LEDGER = "retrain.ledger."
Action = Literal["promoted", "rejected", "compared"]
MAX_TAG = 5000  # characters; the limit of MLflow's database for a registered model's tag


@dataclass(frozen=True)
class Event:
    """A decision about a version, as the ledger records it.

    Attributes:
        action: `promoted` moved the alias `champion` to the version; `rejected` was a verdict
            against it; `compared` is of a run that was not to change what is served.
        version: The number of the version.
        previous: The champion before the decision.
        verdict: The verdict of the gate.
        rules: The rules of the gate, each with its text, value, bound and whether it passed.
        test_images: The identity of the test images that were compared on; None in old entries.
        reference: Whether a promotion also made the version the reference.
        data: The version of the data.
        commit: The git commit whose code decided.
        run: The Prefect flow run that decided.
        time: ISO 8601, UTC.
    """

    action: Action
    version: int
    previous: int | None
    verdict: str
    rules: tuple[Mapping[str, Any], ...]
    data: str | None
    commit: str | None
    run: str | None
    time: str
    test_images: str | None = None
    reference: bool = False

    @property
    def promotes(self) -> bool:
        """Whether it made the version champion."""
        return self.action == "promoted"

    def same_decision(self, other: "Event") -> bool:
        """Whether both are the same decision for the same reasons, whatever run made it."""
        ignored = {"commit": None, "run": None, "time": None}
        return asdict(self) | ignored == asdict(other) | ignored


def now() -> str:
    """The time for an event: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(model: "RegisteredModel | Model") -> list[tuple[int, Event]]:
    """The numbered decisions on a registered model, oldest first."""
    events = []
    for key, value in sorted(model.tags.items()):
        if key.startswith(LEDGER):
            fields = json.loads(value)
            fields["rules"] = tuple(fields["rules"])
            number = int(key.removeprefix(LEDGER).partition("-")[0])
            events.append((number, Event(**fields)))
    return events


def append(client: "MlflowClient", name: str, number: int, event: Event) -> None:
    """Appends a decision to the ledger.

    Args:
        client: A client of the registry.
        name: The name of the registered model.
        number: One more than the number of the last decision.
        event: The decision.

    Raises:
        ValueError: It does not fit into a tag.
    """
    value = json.dumps(asdict(event), sort_keys=True, separators=(",", ":"), allow_nan=False)
    if len(value) > MAX_TAG:
        raise ValueError(
            f"The decision on {name} has {len(event.rules)} rules; that is more than the registry "
            f"can keep ({len(value)} of {MAX_TAG} characters)."
        )
    # The digest after the number keeps two machines from overwriting each other's decision.
    client.set_registered_model_tag(name, f"{LEDGER}{number:06d}-{digest_of(value)[:8]}", value)
