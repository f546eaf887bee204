"""The flow `maintain`: nothing grows for ever, and what may be needed again stays.

retrain maintain [--dry-run]
prefect deployment run maintain/weekly --watch

The command calls `clean` without Prefect, whose server removes its old runs itself: `prefect.toml`
says when.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from flows.pages.page import FOLDER, INDEX, LATEST
from retrain import gc, old_runs, tracking
from retrain.flow import flow
from retrain.messages import message_of
from retrain.project import Project, find_project
from retrain.registry import retention, versions
from retrain.registry.versions import ModelVersion
from retrain.remote_gc import DAY, Finding, Garbage
from retrain.runs import records
from retrain.runs.records import Document


@dataclass(frozen=True)
class Cleaned:
    """What was removed, or would be.

    Attributes:
        dry_run: Whether nothing was removed.
        garbage: Each piece.
        failures: The parts that failed, each with the reason; the others were done.
    """

    dry_run: bool
    garbage: Sequence[Garbage]
    failures: Sequence[str]

    @property
    def bytes(self) -> int:
        """The size of all pieces."""
        return sum(piece.bytes for piece in self.garbage)

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """The number of pieces of each kind, and their bytes."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for piece in self.garbage:
            sizes[piece.kind].append(piece.bytes)
        return [
            {"kind": kind, "pieces": len(each), "bytes": sum(each)}
            for kind, each in sorted(sizes.items())
        ]

    @property
    def outcome(self) -> str:
        """What was removed in one sentence, by kind."""
        from rich.filesize import decimal

        listed = [
            f"{row['pieces']:,} {row['kind']} ({decimal(row['bytes'])})" for row in self.kinds
        ]
        verb = "To remove" if self.dry_run else "Removed"
        return f"{verb}: {', '.join(listed) or 'nothing'}; {decimal(self.bytes)} in all."


@flow
def maintain() -> Document:
    """Removes what has grown old and nobody needs.

    Returns:
        `garbage`, as `retrain maintain --json` prints it, and `outcome`.

    Raises:
        ValueError: A part failed, such as that of a server that does not answer; the message says
            what the others have removed.
    """
    cleaned = clean(find_project())
    if cleaned.failures:
        raise ValueError("\n".join([*cleaned.failures, cleaned.outcome]))
    return {"garbage": [vars(piece) for piece in cleaned.garbage], "outcome": cleaned.outcome}


def clean(project: Project, *, dry_run: bool = False) -> Cleaned:
    """Removes what has grown old; a part that fails does not keep the others from being done.

    Args:
        project: The clone.
        dry_run: Remove nothing.

    Raises:
        UsageError: The section `retention` of the parameters is wrong.
    """
    limits, garbage, failures = project.retention, list[Garbage](), list[str]()
    names, since = records.names(project), time() - limits.days * DAY
    old: list[ModelVersion] = []

    @contextmanager
    def part(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failures.append(f"{name}: {message_of(error)}")

    def take(found: Iterable[Finding]) -> None:
        for piece in gc.take(found, dry_run=dry_run):
            garbage.append(piece)

    with part("versions"), versions.lock(project):
        tracking.check(project)
        for name in names:
            with part(f"versions of {name}"):
                old += retention.beyond(project, name, limits.versions)
        take(retention.findings(project, old))
    with part("trials"):
        take(old_runs.trials(project, names, since))
    with part("files"):
        take(old_runs.searches(project, since))
        take(old_runs.files(project, "drift", project.state.glob("drift/*/*"), since))
        answered = project.state.glob("production/*/answers/*.parquet")
        take(old_runs.files(project, "answers", answered, since))
        take(old_runs.files(project, "report", _reports(project), since))
        take(old_runs.files(project, "copy", _copies(project, names), since))
    with part("store"):
        has_remote = project.store_remote is not None
        take(gc.findings(project, dry_run=dry_run, remote=has_remote, without=old))
    return Cleaned(dry_run, garbage, failures)


def _reports(project: Project) -> Iterator[Path]:
    """The reports of runs that `gc` does not keep."""
    needed = gc.last_runs(project)
    for path in (project.root / FOLDER).glob("*/*.html"):
        if path.name not in (LATEST, INDEX) and path.stem not in needed:
            yield path


def _copies(project: Project, names: Sequence[str]) -> Iterator[Path]:
    """The copies of what MLflow has, but for those of the versions that the next runs need."""
    found = [
        find(project, name) for name in names for find in (versions.champion, versions.reference)
    ]
    needed = {
        part for version in found if version for part in (version.package_digest, version.run_id)
    }
    for pattern in ("champions/*", "learnt_pixels/*.npy"):
        for path in project.state.glob(pattern):
            if path.stem not in needed:
                yield path
