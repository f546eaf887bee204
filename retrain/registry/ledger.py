"""The ledger of the model registry: every decision on a model, as a tag of the registered model.

Moving an alias leaves no trace in MLflow. Written this way, all who share the registry share its
history.
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
MAX_TAG = 5000  # characters; what MLflow's database keeps of a registered model's tag


@dataclass(frozen=True)
class Event:
    """A decision about a version, as the ledger has it.

    Attributes:
        action: What became of the version; `promoted` moved the alias `champion` to it.
        version: Which it was.
        previous: The champion until then.
        verdict: Of the gate.
        rules: Of the gate, each with its words, value, bound and whether it passed.
        data: The version of the data.
        commit: The git commit whose code decided.
        run: The Prefect flow run that decided.
        time: ISO 8601, UTC.
    """

    action: Literal["promoted", "rejected"]
    version: int
    previous: int | None
    verdict: str
    rules: tuple[Mapping[str, Any], ...]
    data: str | None
    commit: str | None
    run: str | None
    time: str

    @property
    def promotes(self) -> bool:
        """Whether it made the version champion."""
        return self.action == "promoted"

    def same_decision(self, other: "Event") -> bool:
        """Whether both decide the same on the same grounds, whoever decided it and when."""
        aside = {"commit": None, "run": None, "time": None}
        return asdict(self) | aside == asdict(other) | aside


def now() -> str:
    """The time for an event: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(model: "RegisteredModel | Model") -> list[tuple[int, Event]]:
    """The numbered decisions on a registered model, oldest first."""
    events = []
    for key, value in sorted(model.tags.items()):
        if key.startswith(LEDGER):
            said = json.loads(value)
            said["rules"] = tuple(said["rules"])
            number = int(key.removeprefix(LEDGER).partition("-")[0])
            events.append((number, Event(**said)))
    return events


def append(client: "MlflowClient", name: str, number: int, event: Event) -> None:
    """Writes a decision behind the others.

    Args:
        client: Of the registry.
        name: The registered model's.
        number: One more than that of the last decision.
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
    # With a digest behind the number, two machines that write at once do not overwrite each other.
    client.set_registered_model_tag(name, f"{LEDGER}{number:06d}-{digest_of(value)[:8]}", value)
