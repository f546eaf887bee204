"""The commands about what is stored: `verify` and `gc`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from retrain.cli.command import KEEPING, Answer, Clone, ToJson, app
from retrain.errors import UsageError

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
    from rich.console import Console
    from rich.progress import Progress

    from flows.verify import verify

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        reading = bar.add_task("reading artifacts", total=None)
        verified = verify(
            project, repair, lambda done, total: bar.update(reading, completed=done, total=total)
        )
    return Answer(verified, lambda: print(*_lines(verified), sep="\n"), not verified.is_whole)


def _lines(verified: "Verified") -> Iterator[str]:
    """The lines for a person about the store, the packages, the ledgers and the lineages."""
    from rich.filesize import decimal

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

    collect = partial(gc.collect, project, keep, days)
    if not (dry_run or _is_agreed(lambda: collect(dry_run=True), yes, to_json)):
        return Answer({}, lambda: print("Nothing was removed."))
    garbage = collect(dry_run=dry_run)
    size = sum(piece.bytes for piece in garbage)
    show = partial(_show_garbage, garbage, "To remove" if dry_run else "Removed")
    return Answer({"dry_run": dry_run, "bytes": size, "garbage": garbage}, show)


def _is_agreed(look: "Callable[[], Sequence[Garbage]]", yes: bool, to_json: bool) -> bool:
    """Whether a person agrees to what would be removed, with `--yes` or after a look.

    Raises:
        UsageError: Nobody can be asked.
    """
    from rich.prompt import Confirm

    if yes:
        return True
    if to_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("gc removes files: add --yes, or look first with --dry-run.")
    garbage = look()
    _show_garbage(garbage, "To remove")
    return bool(garbage) and Confirm.ask("Remove them?", default=False)


def _show_garbage(garbage: "Sequence[Garbage]", verb: str) -> None:
    from rich.filesize import decimal

    from retrain.gc import total

    for piece in garbage:
        print(f"{piece.kind:<9} {piece.name} {decimal(piece.bytes)}")
    print(f"{verb}: {total(garbage)}.")
    print("What a run has used or made in the last 24 hours stays.")
