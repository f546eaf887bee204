"""The command `init`, which makes a workload of a folder of images."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanize import naturalsize

from retrain.cli.command import (
    TRAINING,
    Answer,
    Clone,
    ToJson,
    app,
    place as located,
)
from retrain.errors import UsageError
from retrain.messages import wrapped
from retrain.project import Project

if TYPE_CHECKING:
    from flows.init import Survey

DEMO = "The starter data, handwritten digits, is a workload already: retrain train vit"


@app.command(group=TRAINING)
def init(
    images: str | None = None,
    /,
    *,
    name: str | None = None,
    remote: str | None = None,
    pretrained: str | None = None,
    yes: bool = False,
    demo: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Make a workload of your images, with a fitting network and gate.

    Examples: `retrain init photos`, `retrain init photos --remote /mnt/team/retrain --yes`

    Args:
        images: A folder of images, in any format that a workload takes. They are copied to data/,
            and neither moved nor changed.
        name: The name of the workload; that of the folder, if it is left out.
        remote: A folder or URL that becomes the DVC remote, to which the images are pushed.
        pretrained: A network to start from: a folder, a model on the Hugging Face hub, or none. If
            it is left out, a small one of the hub is used if the hub answers.
        yes: Ask nothing.
        demo: Keep the starter data, and say how it is trained.
    """
    if demo:
        return Answer({"workload": "vit", "next": ["retrain train vit"]}, lambda: print(DEMO))
    asks = sys.stdin.isatty() and not (yes or to_json)
    if images is None:
        if not asks:
            raise UsageError("Name a folder of images, such as: retrain init photos")
        images = _ask("Folder of images", "photos")
    place = Path(images).expanduser().absolute()
    if not place.is_dir():
        raise UsageError(f"There is no folder {place}: name a folder of images.")
    if name is None:
        name = re.sub(r"[^A-Za-z0-9]+", "-", place.name).strip("-") or "images"
        name = _ask("Name of the workload", name) if asks else name
    return _init(project, name, place, remote, pretrained, asks, to_json)


def _init(
    project: Project,
    name: str,
    place: Path,
    remote: str | None,
    pretrained: str | None,
    asks: bool,
    to_json: bool,
) -> Answer:
    from flows import init as flow

    remote = remote and located(remote)
    flow.check(project, name, place, remote)
    seen, proposal = flow.look(project, name, place, pretrained)
    entry, reasons = proposal.entry, proposal.reasons
    out = sys.stderr if to_json else sys.stdout
    print(*_seen(seen), "", f"Workload {name}:", *_entry(entry), sep="\n", file=out)
    print("", *(wrapped(f"- {reason}", "  ") for reason in reasons), sep="\n", file=out)
    if asks:
        answer = remote or _ask("DVC remote, a folder or URL (none if empty)", "")
        remote = located(answer) if answer else None
        flow.check(project, name, place, remote)
        if _ask("Write this?", "yes").lower() not in ("y", "yes"):
            raise UsageError("Nothing was written.")
    files = flow.write(project, name, place, entry, remote)
    commands = [
        f"git add {' '.join(files)} && git commit -m 'Workload {name}'",
        f"retrain train {name}",
        f'mlflow models serve -m "models:/{name}@champion" --env-manager local --port 5001',
    ]
    document = {"workload": name, "entry": entry, "reasons": reasons, "survey": asdict(seen)}
    document |= {"files": files, "next": commands}
    return Answer(document, lambda: _show(files, remote, commands))


def _ask(question: str, default: str) -> str:
    from rich.prompt import Prompt

    return Prompt.ask(question, default=default, show_default=bool(default))


def _seen(survey: "Survey") -> Iterator[str]:
    """What the images are like, for a person."""
    ranked = sorted(survey.classes, key=lambda label: -survey.classes[label])
    shown = ranked if len(ranked) <= 6 else [*ranked[:3], "…", *ranked[-2:]]
    classes = ", ".join(f"{label} {survey.classes.get(label, '')}".strip() for label in shown)
    yield wrapped(
        f"{survey.images:,} images ({survey.format}, {naturalsize(survey.bytes)}) of "
        f"{len(survey.classes):,} classes: {classes}"
    )
    colours = "grey" if survey.is_grey else "in colour"
    yield f"shorter side {survey.side:,} pixels (median), {colours}"
    if survey.undecodable:
        path, error = next(iter(survey.undecodable.items()))
        count = len(survey.undecodable)
        yield f"{count:,} of {count + survey.decoded:,} do not decode; the first: {path} ({error})"


def _entry(entry: Mapping[str, Any]) -> Iterator[str]:
    """The entry for a person, a line for each section."""
    from retrain.workload import flatten

    for section, values in entry.items():
        words = ", ".join(f"{name}: {value}" for name, value in flatten(values).items())
        yield wrapped(f"  {section:<7} {words}", " " * 10)


def _show(files: list[str], remote: str | None, commands: list[str]) -> None:
    print()
    print(wrapped(f"Written: {', '.join(files)}. The images are under DVC."))
    if remote is None:
        print(wrapped("Only this clone has them, as long as DVC has no remote of your own:"))
        print("  dvc fetch data.dvc && dvc remote add --default team PLACE && dvc push data.dvc")
    print("Next:", *(f"  {command}" for command in commands), sep="\n")
