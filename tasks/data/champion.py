"""What is known of the model in production when a challenger is judged."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from retrain.step import digest_of


@dataclass(frozen=True)
class Champion:
    """The model in production, with its metrics on the challenger's test split.

    Attributes:
        version: Its version in the registry; None when there is no champion yet.
        package_digest: Of its package; None for one that was registered without.
        train_digest: Of the training that it came from.
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
        """SHA-256 (hex) of what is known of it."""
        return digest_of(asdict(self))
