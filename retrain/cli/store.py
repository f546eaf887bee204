"""The commands about the store: `verify` and `gc`."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from retrain.cli.command import Commands, print_json
from retrain.project import Project

if TYPE_CHECKING:
    from retrain.store import Leftover
    from retrain.verify import Damage


def add_commands(commands: Commands) -> None:
    """Adds them."""
    help_ = "Read the whole store and say what is not as it was made."
    verify = commands.add("verify", _verify, help_)
    verify.add_argument(
        "--repair", action="store_true", help="take it out: the next run makes it again"
    )
    help_ = "Remove what no recent run and no registered model needs."
    gc = commands.add("gc", _gc, help_)
    gc.add_argument(
        "--keep",
        type=int,
        default=5,
        metavar="N",
        help="runs to keep of each flow and workload (5)",
    )
    gc.add_argument("--dry-run", action="store_true", help="say what it is, and remove nothing")


def _verify(project: Project, options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from retrain import verify
    from retrain.gc import size_of
    from retrain.store import Store

    store = Store(project.store)
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        reading = bar.add_task("reading artifacts", total=None)
        damaged = verify.verify(
            store, lambda done, total: bar.update(reading, completed=done, total=total)
        )
    left = verify.leftovers(store)
    if options.repair:
        for each in damaged:
            verify.take_out(store, each.step, each.key)
    if options.json:
        print_json(
            {
                "artifacts": len(list(store.entries())),
                "damaged": [asdict(each) for each in damaged],
                "repaired": options.repair,
                "leftovers": [
                    asdict(each) | {"path": str(each.path), "bytes": size_of(each.path)}
                    for each in left
                ],
            }
        )
    else:
        _say_verified(damaged, left, options.repair)
    return 1 if damaged and not options.repair else 0


def _say_verified(damaged: Sequence["Damage"], left: Sequence["Leftover"], repaired: bool) -> None:
    from retrain.gc import size_of

    for each in damaged:
        print(f"{each.step} {each.key[:12]} is damaged: {each.said}")
    for remains in left:
        size = human(size_of(remains.path))
        print(f"{remains.step} {remains.key[:12]} left {size} in {remains.path}")
    if not damaged:
        print("Everything in the store is as it was made.")
    elif repaired:
        print("They are out of the store now: the next run that needs them makes them again.")
    else:
        print("Take them out with: retrain verify --repair")
    if left:
        print("What killed runs left goes when they are run again, or with: retrain gc")


def _gc(project: Project, options: argparse.Namespace) -> int:
    from retrain import gc

    garbage = gc.collect(project, options.keep, dry_run=options.dry_run)
    total = sum(each.bytes for each in garbage)
    if options.json:
        print_json(
            {
                "dry_run": options.dry_run,
                "bytes": total,
                "garbage": [asdict(each) for each in garbage],
            }
        )
        return 0
    for each in garbage:
        if each.kind in ("artifact", "scratch", "leftover"):
            step, key = each.name.split()
            print(f"{each.kind:<9} {step:<11} {key[:12]} {human(each.bytes):>10}")
    counts = Counter(each.kind for each in garbage)
    listed = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items())
    verb = "To remove" if options.dry_run else "Removed"
    print(f"{verb}: {listed or 'nothing'}, {human(total)}.")
    return 0


def human(size: float) -> str:
    """A number of bytes as a person says it: `1.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
