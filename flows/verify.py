"""Verifies what the project has stored: the store, the packages, the ledgers and the lineages.

retrain verify [--repair]

It is no Prefect flow: a person runs it, and nobody deploys it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import store as stored
from retrain.project import Project
from retrain.registry import decisions, lineage, packages, tracking, versions
from retrain.registry.versions import ModelVersion
from retrain.store import Damage, Store
from tasks.promote.package import check_files, example_for


@dataclass(frozen=True)
class Fault:
    """Something wrong in the registry.

    Attributes:
        model: The name of the model.
        what: What is wrong, in one sentence.
    """

    model: str
    what: str


@dataclass(frozen=True)
class Verified:
    """What was read, and what is wrong with it.

    Attributes:
        damaged: The artifacts that were changed.
        repaired: Whether those were removed.
        packages: The packages of registered versions that were changed.
        ledgers: The ledgers that cannot be read, and the champions that have no alias.
        lineages: The records of versions that were changed.
    """

    damaged: Sequence[Damage]
    repaired: bool
    packages: Sequence[Fault]
    ledgers: Sequence[Fault]
    lineages: Sequence[Fault]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong any more."""
        unmended = [] if self.repaired else self.damaged
        return not (unmended or self.packages or self.ledgers or self.lineages)


def verify(project: Project, repair: bool) -> Verified:
    """Reads all that is stored.

    Args:
        project: The clone.
        repair: Remove damaged artifacts.
    """
    store = Store(project.store)
    damaged = stored.verify(store)
    for artifact in damaged if repair else ():
        stored.discard_if_damaged(store, artifact.step, artifact.key)
    faults: dict[str, list[Fault]] = {"packages": [], "ledgers": [], "lineages": []}
    for name in tracking.model_names(project):
        try:
            ledger = decisions.read(project, name)
        except ValueError as error:
            faults["ledgers"].append(Fault(name, str(error)))
            continue
        if ledger.fault:
            faults["ledgers"].append(Fault(name, ledger.fault))
        for number in versions.numbers(ledger):
            try:
                version = versions.of(project, ledger, number)
                lineage.read(project, version)
            except ValueError as error:
                faults["lineages"].append(Fault(name, str(error)))
                continue
            if what := _of_package(project, version):
                faults["packages"].append(Fault(name, f"version {number}: {what}"))
    return Verified(damaged, repair, **faults)


def _of_package(project: Project, version: ModelVersion) -> str | None:
    """What is wrong with the package of a version; None if nothing is."""
    with TemporaryDirectory() as place:
        try:
            folder = packages.fetch(project, version, Path(place))
            check_files(folder, version, example_for(project, version))
        except (OSError, ValueError) as error:
            return str(error)
    return None
