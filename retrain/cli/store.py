"""The commands about the store: `verify` and `gc`."""

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from retrain.cli.command import Commands, print_json
from retrain.project import Project

if TYPE_CHECKING:
    from flows.verify import DamagedPackage
    from retrain.store import Leftover
    from retrain.verify import Damage


def add_commands(commands: Commands) -> None:
    """Adds `verify` and `gc`."""
    help_ = "Read the store, all packages, ledgers and lineages; list what was changed."
    verify = commands.add("verify", _verify, help_)
    verify.add_argument(
        "--repair",
        action="store_true",
        help="remove damaged artifacts, which the next run makes again; mend damaged packages",
    )
    help_ = "Remove what no recent run, no registered model and no other project needs."
    gc = commands.add("gc", _gc, help_)
    gc.add_argument(
        "--keep",
        type=int,
        default=5,
        metavar="N",
        help="runs to keep of each flow and workload (5)",
    )
    gc.add_argument("--dry-run", action="store_true", help="list it, and remove nothing")


def _verify(project: Project, options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from flows.verify import damaged_packages
    from retrain import verify
    from retrain.gc import size_of
    from retrain.registry import audit
    from retrain.store import Store

    store = Store(project.store)
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        reading = bar.add_task("reading artifacts", total=None)
        damaged = verify.verify(
            store, lambda done, total: bar.update(reading, completed=done, total=total)
        )
    leftovers = verify.leftovers(store)
    if options.repair:
        for each in damaged:
            verify.discard_if_damaged(store, each.step, each.key)
    packages = damaged_packages(project, options.repair)
    faults, lineages = audit.faults(project), audit.lineage_faults(project)
    if options.json:
        print_json(
            {
                "artifacts": len(list(store.entries())),
                "damaged": [asdict(each) for each in damaged],
                "repaired": options.repair,
                "packages": [asdict(each) for each in packages],
                "ledgers": [asdict(fault) for fault in faults],
                "lineages": [asdict(fault) for fault in lineages],
                "leftovers": [
                    asdict(left) | {"path": str(left.path), "bytes": size_of(left.path)}
                    for left in leftovers
                ],
            }
        )
    else:
        _print_verified(damaged, leftovers, options.repair)
        _print_packages(packages, options.repair)
        for fault in faults:
            print(f"The ledger of {fault.model}: {fault.what}.")
        for fault in lineages:
            print(f"{fault.model} {fault.what}.")
        if not faults:
            print("No ledger was changed.")
        if not lineages:
            print("No lineage was changed.")
    broken = [each for each in packages if not each.repaired]
    return 1 if faults or lineages or broken or (damaged and not options.repair) else 0


def _print_verified(
    damaged: Sequence["Damage"], leftovers: Sequence["Leftover"], repaired: bool
) -> None:
    from retrain.gc import size_of

    for artifact in damaged:
        print(f"{artifact.step} {artifact.key[:12]} is damaged: {artifact.reason}")
    for left in leftovers:
        size = human(size_of(left.path))
        print(f"{left.step} {left.key[:12]} left {size} in {left.path}")
    if not damaged:
        print("No artifact in the store is damaged.")
    elif repaired:
        print("They were removed: the next run that needs them makes them again.")
    else:
        print("Remove them with: retrain verify --repair")
    if leftovers:
        print("Files of killed runs are removed by the next such run, or with: retrain gc")


def _print_packages(packages: Sequence["DamagedPackage"], repair: bool) -> None:
    for each in packages:
        print(f"The package of {each.model} version {each.version} is damaged: {each.what}.")
        if each.repaired:
            print("It was made again from the store.")
        elif each.why:
            print(f"It cannot be made again: {each.why}. Roll back, or train another model.")
    if not packages:
        print("No registered package was changed.")
    elif not repair:
        print("Make them again from the store with: retrain verify --repair")


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
    plural = {kind: f"{kind}{'es' if kind == 'search' else 's'}" for kind in counts}
    listed = ", ".join(f"{n} {kind if n == 1 else plural[kind]}" for kind, n in counts.items())
    verb = "To remove" if options.dry_run else "Removed"
    print(f"{verb}: {listed or 'nothing'}, {human(total)}.")
    print("What a run has used or made in the last 24 hours stays.")
    return 0


def human(size: float) -> str:
    """A number of bytes in a readable unit: `1.2 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
