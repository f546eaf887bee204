"""Verifies what the project has stored: the store, the packages, the ledgers and the lineages.

retrain verify [--repair]

It is no Prefect flow: a person runs it, and nobody deploys it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrain import verify as stored
from retrain.gc import size_of
from retrain.project import Project
from retrain.registry import audit
from retrain.store import Store
from retrain.verify import Damage
from tasks.promote.repair import DamagedPackage, damaged_packages


@dataclass(frozen=True)
class Verified:
    """What was read, and what is wrong with it.

    Attributes:
        artifacts: How many are in the store, without those that were removed.
        damaged: The artifacts that were changed.
        repaired: Whether what can be mended was mended.
        packages: The packages of registered versions that were changed.
        ledgers: The ledgers that were changed.
        lineages: The lineages that were changed.
        leftovers: What killed runs have left in the store: the `step` and its `key`, the `path` of
            the folder and its size in `bytes`.
    """

    artifacts: int
    damaged: Sequence[Damage]
    repaired: bool
    packages: Sequence[DamagedPackage]
    ledgers: Sequence[audit.Fault]
    lineages: Sequence[audit.Fault]
    leftovers: Sequence[Mapping[str, Any]]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong any more."""
        broken = [package for package in self.packages if not package.repaired]
        unmended = [] if self.repaired else self.damaged
        return not (broken or unmended or self.ledgers or self.lineages)


def verify(project: Project, repair: bool, progress: Callable[[int, int], None]) -> Verified:
    """Reads all that is stored.

    Args:
        project: The clone.
        repair: Remove damaged artifacts, and make damaged packages again.
        progress: Called with how many artifacts were read, and how many there are.
    """
    store = Store(project.store)
    damaged = stored.verify(store, progress)
    leftovers = [
        {"step": step, "key": key, "path": str(path), "bytes": size_of(path)}
        for step, key, path in store.leftovers()
    ]
    for artifact in damaged if repair else ():
        stored.discard_if_damaged(store, artifact.step, artifact.key)
    packages = damaged_packages(project, repair)
    ledgers, lineages = audit.faults(project), audit.lineage_faults(project)
    count = len(list(store.entries()))
    return Verified(count, damaged, repair, packages, ledgers, lineages, leftovers)
