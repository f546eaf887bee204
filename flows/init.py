"""Makes a workload of images, which come under DVC, or takes over an example.

retrain init photos
retrain init --example mnist

It is no Prefect flow: a person runs it, and nobody deploys it. The images are copied, and neither
moved nor changed.
"""

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from flows.train import train
from retrain import file_io
from retrain.errors import UsageError, validate
from retrain.params import (
    as_yaml,
    check_name,
    load_workload,
    parse_override,
    parse_yaml,
    set_value,
    workload_names,
)
from retrain.project import PARAMS, Project
from retrain.workload import Data
from tasks.pull.file_sources import LocalSource
from tasks.scaffold import (
    Proposal as Proposal,
    Survey as Survey,
    find_backbone,
    propose,
    survey,
    threads_here,
)

DEPLOYMENTS = "prefect.yaml"
PINNED = "data.dvc"
DVC_CONFIG = ".dvc/config"
STARTER = "starter"  # the remote with the starter data, which is a part of the repository
IGNORED = ".gitignore"

DEPLOYMENT = """\
  - <<: *shared
    name: {name}
    description: Trains {name} on the current data and promotes it if the gate passes it.
    entrypoint: flows/train.py:train
    parameters:
      workload: {name}
    tags: [train, {name}]
    schedules:
      - slug: weekly
        cron: "0 4 * * 1"  # Mondays, 04:00
        timezone: Etc/UTC
"""


def add_example(project: Project, example: str) -> list[str]:
    """Adds an example to the clone's workloads and deployments.

    Args:
        project: The clone.
        example: The name of a file of `examples/`, and of its workload.

    Returns:
        The files that were changed, relative to the project.

    Raises:
        UsageError: There is no such example, or a workload of its name.
    """
    examples = {file.stem: file for file in (project.root / "examples").glob("*.yaml")}
    if example not in examples:
        known = ", ".join(sorted(examples))
        raise UsageError(f"--example {example}: no such example. There are: {known}.")
    if example in workload_names(project.params):
        raise UsageError(f"There is a workload {example} already.")
    text = examples[example].read_text(encoding="utf-8")
    _add(project, example, text.partition("workloads:\n")[2])
    return [PARAMS, DEPLOYMENTS]


def check(project: Project, name: str, images: Path, remote: str | None) -> None:
    """Refuses what cannot become a workload, before the images are looked at.

    Raises:
        UsageError: The name is taken or not valid, or DVC has a remote.
    """
    check_name(name)
    if name in workload_names(project.params):
        raise UsageError(f"There is a workload {name} already: choose another with --name.")
    if project.root.resolve().is_relative_to(images.resolve()):
        raise UsageError(f"{images} holds this project itself; name the folder of the images.")
    if (project.root / _place(project, name, images)).exists() and not _is_inside(project, images):
        raise UsageError(f"data/{name} is there already: choose another name with --name.")
    if remote and (other := _remote(project)) not in (STARTER, None):
        raise UsageError(f"DVC has a remote here, {other}, which is used: leave --remote out.")


def inspect(
    project: Project, name: str, images: Path, pretrained: str | None, settings: Sequence[str]
) -> tuple[Survey, Proposal]:
    """Looks at images, and proposes a workload for them and this machine.

    Args:
        project: The clone.
        name: The name of the workload.
        images: The folder.
        pretrained: A folder, a model on the hub, or `none`; None for one that is chosen.
        settings: Parameters of the section `data`, such as `data.format=folders`.

    Raises:
        UsageError: There is no such network, or no such parameter.
        ValueError: The images cannot be read, or are too few.
        ConnectionError: The hub does not give the network.
    """
    path = _place(project, name, images).as_posix()
    tree: dict[str, Any] = {"data": {"path": path}}
    for dotted, value in map(parse_override, settings):
        set_value(tree, dotted, value)
    if tree.keys() != {"data"}:
        raise UsageError("--set takes parameters of data here: edit params.yaml for the others.")
    data = validate(Data, tree["data"], name, ("data",))
    try:
        seen = survey(images, data)
    except ValueError as error:
        if not re.search(r"data\.(format|\w+_column)", str(error)):
            raise
        raise ValueError(f"{error} (Here: --set data.format=folders or the like.)") from None
    backbone = None
    if pretrained != "none" and not (seen.is_grey and pretrained is None):
        try:
            backbone = find_backbone(pretrained, project.root)
        except FileNotFoundError as error:
            raise UsageError(f"--pretrained: {error}.") from None
    proposal = propose(path, seen, threads_here(), backbone)
    entry = {**proposal.entry, "data": {**proposal.entry["data"], **tree["data"]}}
    return seen, replace(proposal, entry=entry)


def write(
    project: Project, name: str, images: Path, entry: Mapping[str, Any], remote: str | None
) -> list[str]:
    """Writes a workload and its deployment, and puts the images under DVC; all of it or nothing.

    Args:
        project: The clone.
        name: The name of the workload.
        images: The folder.
        entry: Its entry in `params.yaml`.
        remote: A folder or URL that becomes DVC's default remote; None leaves it as it is.

    Returns:
        The files that were changed, relative to the project.

    Raises:
        ValueError: DVC does not take the images, or the workload is not valid here.
        OSError: A file cannot be read or written.
    """
    ignored = _untracked(project, images)
    more = {IGNORED: ignored, DVC_CONFIG: remote}
    files = [PARAMS, DEPLOYMENTS, PINNED, *(file for file, needed in more.items() if needed)]
    place, data = project.root / _place(project, name, images), project.root / "data"
    with ExitStack() as undo:
        for path in (project.root / file for file in files):
            if path.exists():
                undo.callback(path.write_bytes, path.read_bytes())
            else:
                undo.callback(path.unlink, missing_ok=True)
        if not place.exists():
            made = place if data.exists() else data
            undo.callback(shutil.rmtree, made, ignore_errors=True)
            place.mkdir(parents=True)
            source = LocalSource(images)
            source.fetch(source.digest(), place, place)
        _dvc(project, "add", "--quiet", "--", str(place))
        if remote:
            if _remote(project):
                _dvc(project, "fetch", "--quiet", PINNED)  # what the other remote has of data/
            _dvc(project, "remote", "add", "--quiet", "--default", "--", "team", remote)
            _dvc(project, "push", "--quiet", PINNED)
        yaml, text = YAML(), io.StringIO()
        yaml.width, yaml.default_flow_style = 100, None  # a mapping without sections is on one line
        yaml.dump({name: entry}, text)
        _add(project, name, indent(text.getvalue(), "  "))
        if ignored:
            with (project.root / IGNORED).open("a", encoding="utf-8") as file:
                file.write(ignored)
        train.check(load_workload(project.params, name), project)
        undo.pop_all()
    return files


def _untracked(project: Project, images: Path) -> str:
    """What lets git ignore images in the project that it does not know; DVC has their copy."""
    images = images.resolve()
    with suppress(ValueError, FileNotFoundError):  # they are elsewhere, or there is no git
        place = images.relative_to(project.root.resolve()).as_posix()
        if project.git("ls-files", "--others", "--exclude-standard", "--", str(images)):
            pattern = re.sub(r"([*?[\\])", r"\\\1", place)
            return f"\n# The images of which data/ has a copy\n/{pattern}/\n"
    return ""


def _is_inside(project: Project, images: Path) -> bool:
    """Whether images are in the folder that DVC has already."""
    return images.resolve().is_relative_to((project.root / "data").resolve())


def _place(project: Project, name: str, images: Path) -> Path:
    """Where the images of a workload are, relative to the project."""
    if _is_inside(project, images):
        return images.resolve().relative_to(project.root.resolve())
    return Path("data", name)


def _add(project: Project, name: str, entry: str) -> None:
    """Adds a workload and its deployment at the end of the files; the rest of them stays as it is.

    Raises:
        UsageError: Nothing can be added there.
    """
    deployment = DEPLOYMENT.format(name=as_yaml(name))
    texts = {
        PARAMS: _append(project.params, "workloads", entry),
        DEPLOYMENTS: _append(project.root / DEPLOYMENTS, "deployments", deployment),
    }
    for file, text in texts.items():
        file_io.write_text(project.root / file, text)


def _append(file: Path, section: str, entry: str) -> str:
    """The text of a file with one more entry of its last section."""
    before = file.read_text(encoding="utf-8")
    text = f"{before.rstrip()}\n{entry}"
    try:
        added = len(parse_yaml(text)[section]) - len(parse_yaml(before)[section] or ())
    except YAMLError:
        added = 0
    if added != 1:
        raise UsageError(
            f"{file.name}: nothing can be added at its end; let `{section}:` be its last section, "
            "with entries indented by two spaces, and leave `definitions:` as shipped."
        )
    return text


def _remote(project: Project) -> str | None:
    """The name of DVC's default remote."""
    from dvc.config import Config

    name: str | None = Config(str(project.root / ".dvc"))["core"].get("remote")
    return name


def _dvc(project: Project, *arguments: str) -> None:
    """Runs DVC in the project.

    Raises:
        ValueError: It failed; the message is DVC's own.
    """
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=project.root, capture_output=True, encoding="utf-8")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise ValueError(f"dvc {arguments[0]}: {lines[0].removeprefix('ERROR: ')}")
