"""The commands about what is stored: `verify` and `gc`."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.filesize import decimal

from retrain.cli.command import KEEPING, Answer, Clone, ToJson, app, confirmed
from retrain.runs import console

if TYPE_CHECKING:
    from flows.verify import Fault, Verified
    from retrain.gc import Garbage


@app.command(group=KEEPING)
def verify(*, repair: bool = False, project: Clone) -> Answer:
    """Read the store and the registry; list what was changed.

    Example: `retrain verify --repair`

    Args:
        repair: Remove damaged artifacts, which the next run makes again.
    """
    from flows.verify import verify

    with console.shown_on(sys.stderr):
        verified = verify(project, repair)
    return Answer(verified, lambda: print(*_lines(verified), sep="\n"), not verified.is_whole)


def _lines(verified: "Verified") -> Iterator[str]:
    """The lines for a person about the store, the packages, the ledgers and the lineages."""
    for artifact in verified.damaged:
        yield f"{artifact.step} {artifact.key[:12]} is damaged: {artifact.reason}"
    for leftover in verified.leftovers:
        yield (
            f"{leftover['step']} {leftover['key'][:12]} left {decimal(leftover['bytes'])} "
            f"in {leftover['path']}"
        )
    if not verified.damaged:
        yield "No artifact in the store is damaged."
    elif verified.repaired:
        yield "They were removed: the next run that needs them makes them again."
    else:
        yield "Remove them, so that the next run makes them again, with: retrain verify --repair"
    if verified.leftovers:
        yield "Files of killed runs are removed by the next such run, or with: retrain gc"
    for kind in ("package", "ledger", "lineage"):
        found: Sequence[Fault] = getattr(verified, f"{kind}s")
        yield from (f"The {kind} of {fault.model}: {fault.what.rstrip('.')}." for fault in found)
        if not found:
            yield f"No {kind} was changed."


@app.command(group=KEEPING)
def gc(
    *,
    keep: int = 5,
    days: int = 90,
    dry_run: bool = False,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Remove what no recent run and no champion needs.

    It lists what would go, and asks first.

    Examples: `retrain gc --dry-run`, `retrain gc --yes`

    Args:
        keep: How many runs of each flow and workload are kept.
        days: How many days the logs, reports and other files of earlier runs are kept.
        dry_run: List what would be removed, and remove nothing.
        yes: Do not ask; without a terminal nobody can be asked.
    """
    from retrain import gc

    if not (dry_run or yes):
        found = gc.collect(project, keep, days, dry_run=True)
        if not confirmed("\n".join([*_listed(found, "To remove"), "Remove them?"]), to_json):
            return Answer({}, lambda: print("Nothing was removed."))
    garbage = gc.collect(project, keep, days, dry_run=dry_run)
    size = sum(piece.bytes for piece in garbage)
    lines = _listed(garbage, "To remove" if dry_run else "Removed")
    document = {"dry_run": dry_run, "bytes": size, "garbage": garbage}
    return Answer(document, lambda: print(*lines, sep="\n"))


def _listed(garbage: "Sequence[Garbage]", verb: str) -> Iterator[str]:
    from retrain.gc import total

    yield from (f"{piece.kind:<9} {piece.name} {decimal(piece.bytes)}" for piece in garbage)
    yield f"{verb}: {total(garbage)}."
    yield "What a run has used or made in the last 24 hours stays."
