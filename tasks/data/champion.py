"""Describes the model in production to the gate."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from retrain.step import digest_of


@dataclass(frozen=True)
class Champion:
    """The model in production, with its metrics on the challenger's test split.

    Attributes:
        version: Its version in the registry; None when there is no champion yet.
        package_digest: The digest of its package; None if it was registered without one.
        train_digest: The digest of its training.
        metrics: By name, as `evaluate` gives them.
    """

    version: int | None
    package_digest: str | None
    train_digest: str | None
    metrics: Mapping[str, float]

    @property
    def step(self) -> str:
        """Its name as an input of the gate."""
        return "champion"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all its attributes."""
        return digest_of(asdict(self))
