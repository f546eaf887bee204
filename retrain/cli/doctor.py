"""The command `doctor`: what a run needs on this machine and nobody sees, a line for each check.

A check returns what there is. It raises a `ValueError` about what would make a run fail, and a
`UserWarning` about what may be meant so; both say what a person can do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.utils import canonicalize_name
from rich import print as rich_print
from rich.markup import escape

from retrain import hardware, messages
from retrain.cli.command import KEEPING, Answer, Clone, app
from retrain.errors import shorten
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs import preflight
from retrain.servers import databases, reachable
from retrain.store import Store

MARKS = {
    "ok": "[green]\N{CHECK MARK}[/]",
    "warning": "[yellow]![/]",
    "fault": "[red]\N{BALLOT X}[/]",
}
REMOTE_SECONDS = 8.0

# Run in a process of its own, because a remote that does not answer is waited for by its library.
# It prints what may be meant so.
ASK_REMOTE = """
import sys
from dvc.repo import Repo
from retrain.servers import reachable
with Repo(sys.argv[1], config={"core": {"no_scm": True}}) as repo:
    if not repo.config["core"].get("remote"):
        sys.exit(print("there is no default remote: dvc remote add --default NAME URL"))
    remote = repo.cloud.get_remote()
    if remote.path.startswith("http"):  # where to exist means to have a page
        reachable.check("the remote in .dvc/config", remote.path)
    elif not remote.fs.exists(remote.path):
        print(f"nothing is at {remote.path}: is it mounted? dvc push makes it")
"""


@dataclass(frozen=True)
class Finding:
    """What a check has found.

    Attributes:
        check: What was checked, in a word or two.
        state: `fault` if a run would fail.
        says: What there is, and what a person can do about it.
    """

    check: str
    state: Literal["ok", "warning", "fault"]
    says: str


@app.command(group=KEEPING)
def doctor(*, project: Clone) -> Answer:
    """Check what Retrain needs on this machine, and say what to do.

    Example: `retrain doctor`
    """
    project.state.mkdir(exist_ok=True)
    findings = [_checked(name, project) for name in CHECKS]

    def show() -> None:
        for finding in findings:
            rich_print(f"{MARKS[finding.state]} {finding.check:<10} {escape(finding.says)}")

    return Answer(findings, show, failed=any(finding.state == "fault" for finding in findings))


def _checked(name: str, project: Project) -> Finding:
    try:
        return Finding(name, "ok", CHECKS[name](project))
    except UserWarning as warning:
        return Finding(name, "warning", str(warning))
    except Exception as error:  # a check that fails must not hide the others
        return Finding(name, "fault", message_of(error))


def _packages(project: Project) -> str:
    text = (project.root / "requirements.lock").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==(\S+)(?: \\)?$", text, re.MULTILINE)  # on every system
    here = {canonicalize_name(each.name): each.version for each in metadata.distributions()}
    wrong = {name: here.get(name) for name, version in locked if here.get(name) != version}
    if not wrong:
        return f"{len(locked)} packages as in requirements.lock"
    named = ", ".join(f"{name} {version or 'is missing'}" for name, version in wrong.items())
    kind = UserWarning if all(wrong.values()) else ValueError
    raise kind(
        f"not as in requirements.lock: {shorten(named, 200)}; touch requirements-dev.lock && "
        "make setup"
    )


def _gpu(_: Project) -> str:
    if names := ", ".join(gpu.name for gpu in hardware.gpus()):
        return names
    if shutil.which("nvidia-smi"):
        raise UserWarning(
            f"there is a driver, but PyTorch {metadata.version('torch')} uses no GPU: see "
            "nvidia-smi and CUDA_VISIBLE_DEVICES, and install the build of PyTorch for CUDA"
        )
    return f"none; trains on {os.cpu_count()} cores"


def _remote(project: Project) -> str:
    command = [sys.executable, "-c", ASK_REMOTE, str(project.root)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=REMOTE_SECONDS)
    except subprocess.TimeoutExpired:
        limit = f"{REMOTE_SECONDS:.0f} s"
        raise ValueError(f"no answer within {limit}: see .dvc/config and the network") from None
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1].partition(": ")[2])
    if done.stdout:
        raise UserWarning(done.stdout.strip())
    return "answers"


def _disk(_: Project) -> str:
    space, folder = messages.least_space()
    if space < messages.MIN_BYTES:
        raise ValueError(f"{space / 1e9:.1f} GB are left in {folder}: make room there")
    return f"{space / 1e9:.1f} GB are left in {folder}"


def _store(project: Project) -> str:
    remote = Store.of(project).remote
    if remote is None:
        return "on this machine only; store.remote shares it with others"
    remote.has("doctor", "none")
    return f"{remote.url} answers"


def _servers(project: Project) -> str:
    from retrain.servers import services

    databases.check(databases.of_prefect(project), "prefect")
    if file := databases.of_mlflow(project):
        databases.check(file, "mlflow")
    preflight.check_surroundings(project)  # those that the environment names
    if api := services.server_api(project):
        reachable.check("PREFECT_API_URL", api, "/health")
    running = services.running(project)
    for name in services.services_of(project) if running else ():
        if name not in running or not services.is_ready(project, name):
            log = project.relative(project.logs / f"{name}.log")
            raise ValueError(f"{name} does not answer: see {log}")
    return ", ".join(running) or "none run; retrain up starts them"


CHECKS: dict[str, Callable[[Project], str]] = {
    "packages": _packages,
    "GPU": _gpu,
    "disk": _disk,
    "DVC remote": _remote,
    "store": _store,
    "servers": _servers,
}
