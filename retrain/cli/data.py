"""The commands about the data of a workload: `init`, `suspects`, `labels`."""

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.filesize import decimal

from retrain.cli.command import (
    IMPROVING,
    TRAINING,
    Answer,
    Clone,
    ToJson,
    Workload,
    app,
    confirmed,
    place,
)
from retrain.cli.flows import DEFAULTS, RunOptions, run_steps
from retrain.errors import UsageError
from retrain.runs import console
from retrain.runs.console import wrapped

if TYPE_CHECKING:
    from flows.corrections import Import
    from flows.init import Proposal, Survey


@app.command(group=TRAINING)
def init(
    images: Path | None = None,
    /,
    *,
    name: str | None = None,
    remote: str | None = None,
    pretrained: str | None = None,
    overrides: Annotated[
        tuple[str, ...], Parameter(name="--set", metavar="KEY=VALUE", show_default=False)
    ] = (),
    example: str | None = None,
    yes: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Make a workload of your images, or take one of the examples.

    Examples: `retrain init photos`, `retrain init photos --remote /mnt/team/retrain --yes`,
    `retrain init --example mnist`

    Args:
        images: A folder of images, in any format that a workload takes. They are copied to data/,
            and neither moved nor changed.
        name: The name of the workload; that of the folder, if it is left out.
        remote: A folder or URL that becomes the DVC remote, to which the images are pushed.
        pretrained: A network to start from: a folder, a model on the Hugging Face hub, or none. If
            it is left out, a small one of the hub is used if the hub answers.
        overrides: Tell what the images are, such as data.format=folders or data.label_column=breed
            (repeatable).
        example: A workload of examples/, in place of a folder of images.
        yes: Ask nothing.
    """
    from flows import init as flow

    if example:
        return _written({"workload": example}, flow.add_example(project, example))
    if images is None:
        raise UsageError("Name a folder of images (retrain init photos), or an --example.")
    folder = Path(place(str(images)))
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}: name a folder of images.")
    name = name or re.sub(r"[^A-Za-z0-9]+", "-", folder.name).strip("-") or "images"
    remote = remote and place(remote)
    flow.check(project, name, folder, remote)
    screen = sys.stderr if to_json else sys.stdout
    with console.shown_on(screen):
        seen, proposal = flow.inspect(project, name, folder, pretrained, overrides)
    print(*_proposed(name, seen, proposal), sep="\n", file=screen)
    if sys.stdin.isatty() and not (yes or to_json):
        from rich.prompt import Confirm

        if not Confirm.ask("Write this?", default=True):
            raise UsageError("Nothing was written.")
    files = flow.write(project, name, folder, proposal.entry, remote)
    document = {"workload": name, **asdict(proposal), "survey": asdict(seen)}
    return _written(document, files, has_remote=remote is not None)


def _proposed(name: str, survey: "Survey", proposal: "Proposal") -> Iterator[str]:
    """What the images are like, and the workload for them, a line for each section."""
    from retrain.workload import flatten

    ranked = sorted(survey.classes, key=lambda label: -survey.classes[label])
    shown = ranked if len(ranked) <= 6 else [*ranked[:3], "…", *ranked[-2:]]
    classes = ", ".join(f"{label} {survey.classes.get(label, '')}".strip() for label in shown)
    yield wrapped(
        f"{survey.images:,} images ({survey.format}, {decimal(survey.bytes)}) of "
        f"{len(survey.classes):,} classes: {classes}"
    )
    colours = "grey" if survey.is_grey else "in colour"
    yield f"shorter side {survey.side:,} pixels (median), {colours}"
    if survey.undecodable:
        path, error = next(iter(survey.undecodable.items()))
        count = len(survey.undecodable)
        yield f"{count:,} of {count + survey.decoded:,} do not decode; the first: {path} ({error})"
    yield f"\nWorkload {name}:"
    for section, values in proposal.entry.items():
        words = ", ".join(f"{name}: {value}" for name, value in flatten(values).items())
        yield wrapped(f"  {section:<7} {words}", " " * 10)
    yield ""
    for reason in proposal.reasons:
        yield wrapped(f"- {reason}", "  ")


def _written(document: dict[str, Any], files: list[str], *, has_remote: bool = True) -> Answer:
    """What was written, and what comes next."""
    name = document["workload"]
    commands = [
        f"git add {' '.join(files)} && git commit -m 'Workload {name}'",
        f"retrain train {name}",
        "make up",
        f"prefect deployment run train/{name} --watch",
        f"retrain serve {name} --port 5001",
    ]

    def show() -> None:
        print("", wrapped(f"Written: {', '.join(files)}."), sep="\n")
        if not has_remote:
            print(wrapped("Only this clone has the images, as long as DVC has no remote of yours:"))
            print(
                "  dvc fetch data.dvc && dvc remote add --default team PLACE && dvc push data.dvc\n"
                "  git commit -m 'DVC remote' .dvc/config"
            )
        print("Next:", *(f"  {command}" for command in commands), sep="\n")

    return Answer(document | {"files": files, "next": commands}, show)


@app.command(group=IMPROVING)
def suspects(
    workload: Workload,
    /,
    *,
    options: RunOptions = DEFAULTS,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Find labels that are probably wrong, contradictions and outliers.

    Example: `retrain suspects vit`
    """
    from flows.suspects import suspects as flow

    return run_steps(flow, workload, options, project, to_json)


@app.command(group=IMPROVING)
def labels(
    workload: Workload,
    file: Path,
    /,
    *,
    dry_run: bool = False,
    yes: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Take corrected labels over into a workload's data.

    Example: `retrain labels vit reports/vit/suspects-1a2b3c4d.csv --dry-run`

    Args:
        file: The CSV file of `retrain suspects`, with the column `corrected` filled.
        dry_run: Show what would change, image by image, and change nothing.
        yes: Ask nothing.
    """
    from flows import corrections as flow

    plan = flow.plan(project, workload, Path(place(str(file))))
    shown = sys.stderr if to_json else sys.stdout
    print(*_difference(plan, dry_run), sep="\n", file=shown)
    if not plan.changes or dry_run:
        return Answer(plan.document(is_applied=False))
    if not yes and not confirmed(f"Change {len(plan.changes):,} labels?", to_json):
        raise UsageError("Nothing was changed.")
    plan.apply()
    return Answer(
        plan.document(is_applied=True),
        lambda: print("Changed. Next:", *(f"  {line}" for line in plan.commands), sep="\n"),
    )


def _difference(plan: "Import", in_detail: bool) -> Iterator[str]:
    """What would change, for a person."""
    if in_detail:
        for change in plan.changes:
            yield f"{change.path}: {change.before or 'none'} -> {change.after}"
    for name, counts in plan.classes.items():
        yield f"{name:<20} {-counts['leave']:+6,} {counts['come']:+6,}"
    same = plan.read - len(plan.changes)
    yield f"{len(plan.changes):,} labels change; {same:,} are as the data has them already."
