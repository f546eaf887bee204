"""Describes the registered versions that a model is compared with, or starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from retrain.project import Project
from retrain.registry import lineage, packages, versions
from retrain.runs.run import current_run
from retrain.step import Input
from retrain.store import Artifact
from retrain.workload import NEAR_DUPLICATES
from tasks.data import package


@dataclass(frozen=True)
class RegisteredVersion:
    """A version of the model, as the registry has it.

    Attributes:
        project: The clone with the registry.
        version: The version of the model.
    """

    project: Project
    version: versions.ModelVersion

    @property
    def as_input(self) -> Input:
        """The version as an input of a step."""
        return Input("registry", self.version.package_digest, self)

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
class ScoredVersion:
    """A registered version that was scored on the challenger's test split.

    Attributes:
        registered: The version.
        evaluation: The evaluation of the version; the challenger's if both are the same package.
    """

    registered: RegisteredVersion
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


def champion_ties() -> Input:
    """The file about the images that look the same to the champion; None if there is none.

    It is an input of `validate`, so that these images keep their split (`data.group:
    near_duplicates`).
    """
    run, content = current_run(), None
    if run.workload.data.group == NEAR_DUPLICATES:
        given = run.project.state / lineage.TIES  # while `reproduce` trains again
        champion = versions.champion(run.project, run.workload.name)
        if given.exists():
            content = given.read_bytes()
        elif champion:
            content = lineage.read_ties(run.project, champion.run_id)
    return Input("champion_ties", sha256(content or b"").hexdigest(), content)
