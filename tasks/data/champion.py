"""Describes the registered versions that a model is compared with, or starts from.

And the ties of the champion's images, which `validate` keeps.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from retrain.project import Project
from retrain.registry import lineage, packages, versions
from retrain.runs.run import current_run
from retrain.step import digest_of
from retrain.store import Artifact
from retrain.workload import NEAR_DUPLICATES
from tasks.data import package


@dataclass(frozen=True)
class Registered:
    """A version of the model, as the registry has it.

    Attributes:
        project: The clone with the registry.
        version: The version of the model.
    """

    step = "registry"  # its name as an input
    project: Project
    version: versions.ModelVersion

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what it serves."""
        return self.version.package_digest

    @cached_property
    def package(self) -> Path:
        """The folder with its files; downloaded on first use.

        Raises:
            ValueError: A file is gone or has changed since it was registered.
        """
        folder = packages.download(self.project, self.version)
        if damage := package.fault(folder, self.version.package_digest):
            remedy = packages.REMEDY.format(name=self.version.name)
            raise ValueError(f"The package of {self.version.title} {damage}. {remedy}")
        return folder


@dataclass(frozen=True)
class TestSplit:
    """The test split, on which a registered version is scored.

    The other splits do not change the scores.

    Attributes:
        validated: The output of `validate`.
    """

    step = "test_split"  # its name as an input
    __test__ = False  # it is no test of pytest's

    validated: Artifact

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the test images, and of the classes of the data."""
        facts = self.validated.facts
        return digest_of([facts["test_rows"], sorted(facts["classes"])])


@dataclass(frozen=True)
class Start:
    """The weights that a training starts from.

    Attributes:
        registered: The version whose weights it takes; None for new weights.
    """

    step = "start"  # its name as an input
    registered: Registered | None

    @property
    def model(self) -> Path | None:
        """The folder with the saved network; None for new weights."""
        return self.registered.package / packages.MODEL if self.registered else None

    @property
    def weights(self) -> str | None:
        """SHA-256 (hex) of the weights; None for new ones."""
        return self.registered.version.weights if self.registered else None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the digest of the weights."""
        return digest_of(self.weights)


@dataclass(frozen=True)
class Scored:
    """A registered version that was scored on the challenger's test split.

    Attributes:
        registered: The version.
        evaluation: The evaluation of the version; the challenger's if both are the same package.
    """

    registered: Registered
    evaluation: Artifact


@dataclass(frozen=True)
class Opponent:
    """A registered version that a challenger is compared with.

    Attributes:
        version: The number of the version.
        train_digest: The digest of its training.
        metrics: On the challenger's test split, by name, as `evaluate` gives them.
        comparison: What the comparison found; None for the same package.
    """

    version: int
    train_digest: str
    metrics: Mapping[str, float]
    comparison: Mapping[str, Any] | None


@dataclass(frozen=True)
class Opponents:
    """The models that a challenger is compared with.

    Attributes:
        champion: The model in production; None when there is none yet.
        reference: The best model so far, if that is another one.
    """

    step = "opponents"  # its name as an input
    champion: Opponent | None
    reference: Opponent | None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of all its attributes."""
        return digest_of(asdict(self))


@dataclass(frozen=True)
class ChampionTies:
    """The numbers of the champion's ties of images that look the same, which they keep.

    Attributes:
        content: The file `lineage.TIES` of its training; None if there is none.
    """

    step = "champion_ties"  # its name as an input
    content: bytes | None = None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the file, or of nothing."""
        return sha256(self.content or b"").hexdigest()


def champion_ties() -> ChampionTies:
    """Finds the ties that images keep: those of the champion, for `data.group: near_duplicates`."""
    run = current_run()
    if run.workload.data.group != NEAR_DUPLICATES:
        return ChampionTies()
    if (given := run.project.state / lineage.TIES).exists():  # `reproduce` trains again
        return ChampionTies(given.read_bytes())
    champion = versions.champion(run.project, run.workload.name)
    return ChampionTies(lineage.read_ties(run.project, champion.run_id) if champion else None)
