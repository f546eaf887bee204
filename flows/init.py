"""Makes a workload of images: looks at them, proposes, and writes it with the images under DVC.

retrain init photos

It is no Prefect flow: a person runs it, and nobody deploys it. The images are copied, and neither
moved nor changed.
"""

import io
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.train import train
from retrain import atomic
from retrain.errors import UsageError
from retrain.params import TEAM_PARAMS, check_name, load_workload, workload_names
from retrain.project import Project
from tasks.data.survey import Survey as Survey, survey
from tasks.pull.dvc_source import STARTER
from tasks.pull.local_source import LocalSource
from tasks.train.proposal import Proposal, find_backbone, propose, this_machine

TEAM_DEPLOYMENTS = Path("team", "prefect.yaml")
PINNED = Path("data.dvc")
DVC_CONFIG = Path(".dvc", "config")
NO_NETWORK = "none"  # as `--pretrained`


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
    if remote and (other := _dvc(project, "config", "core.remote")) != STARTER:
        raise UsageError(f"DVC has a remote here, {other}, which is used: leave --remote out.")


def look(
    project: Project, name: str, images: Path, pretrained: str | None
) -> tuple[Survey, Proposal]:
    """Looks at images, and proposes a workload for them and this machine.

    Args:
        project: The clone.
        name: The name of the workload.
        images: The folder.
        pretrained: A folder, a model on the hub, or `none`; None for one that is chosen.

    Raises:
        UsageError: There is no such network.
        ValueError: The images cannot be read, or are too few.
        ConnectionError: The hub does not give the network.
    """
    seen = survey(images)
    backbone = None
    if pretrained != NO_NETWORK and not (seen.is_grey and pretrained is None):
        try:
            backbone = find_backbone(pretrained, project.root)
        except FileNotFoundError as error:
            raise UsageError(f"--pretrained: {error}.") from None
    path = _place(project, name, images).as_posix()
    return seen, propose(path, seen, this_machine(), backbone)


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
    files = [TEAM_PARAMS, TEAM_DEPLOYMENTS, PINNED, *([DVC_CONFIG] if remote else [])]
    place, data = project.root / _place(project, name, images), project.root / "data"
    with ExitStack() as clean_up, ExitStack() as undo:
        if not data.exists():  # the version is in DVC's cache, and the rest was never here
            clean_up.callback(shutil.rmtree, data, ignore_errors=True)
        for path in (project.root / file for file in files):
            undo.callback(_restore, path, path.read_bytes() if path.exists() else None)
        if not place.exists():
            undo.callback(shutil.rmtree, place, ignore_errors=True)
            place.mkdir(parents=True)
            source = LocalSource(images)
            source.fetch(source.digest(), place, place)
        _dvc(project, "add", "--quiet", "--", str(place))
        if remote:
            _dvc(project, "fetch", "--quiet", PINNED.name)  # what the other remote has of data/
            _dvc(project, "remote", "add", "--quiet", "--default", "--", "team", remote)
            _dvc(project, "push", "--quiet", PINNED.name)
        _add(project.root / TEAM_PARAMS, "workloads", {name: entry})
        _add(project.root / TEAM_DEPLOYMENTS, "deployments", [_deployment(name)])
        train.check(load_workload(project.params, name), project)
        undo.pop_all()
    return [str(file) for file in files]


def _restore(path: Path, content: bytes | None) -> None:
    """Gives a file the content that it had; None removes it."""
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _is_inside(project: Project, images: Path) -> bool:
    """Whether images are in the folder that DVC has already."""
    return images.resolve().is_relative_to((project.root / "data").resolve())


def _place(project: Project, name: str, images: Path) -> Path:
    """Where the images of a workload are, relative to the project."""
    if _is_inside(project, images):
        return images.resolve().relative_to(project.root.resolve())
    return Path("data", name)


def _deployment(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"Trains {name} on the current data and promotes it if the gate passes it.",
        "entrypoint": "flows/train.py:train",
        "parameters": {"workload": name},
        "tags": ["train", name],
        "schedules": [{"cron": "0 4 * * 1", "timezone": "Etc/UTC"}],
        "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        "work_pool": {"name": "local"},
    }


def _add(file: Path, key: str, entry: Mapping[str, Any] | list[Any]) -> None:
    """Adds an entry to a mapping or a list of a YAML file, whose comments stay."""
    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 100
    yaml.default_flow_style = None  # of what is added: on one line, if it has no sections
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = (yaml.load(file) if file.exists() else None) or {}
    if not tree.get(key):
        tree[key] = entry
    elif isinstance(entry, Mapping):
        tree[key].update(entry)
    else:
        tree[key].extend(entry)
    text = io.StringIO()
    yaml.dump(tree, text)
    atomic.write_text(file, text.getvalue())


def _dvc(project: Project, *arguments: str) -> str:
    """Runs DVC in the project; returns what it printed.

    Raises:
        ValueError: It failed; the message is DVC's own.
    """
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, cwd=project.root, capture_output=True, encoding="utf-8")
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it failed"]
        raise ValueError(f"dvc {arguments[0]}: {lines[0].removeprefix('ERROR: ')}")
    return done.stdout.strip()
