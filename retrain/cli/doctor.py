"""The command `doctor`: whether this machine has what Retrain needs, a line for each check.

A check returns what there is. It raises a `ValueError` about what would make a run fail, and a
`UserWarning` about what may be meant so; both say what a person can do.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from retrain.cli.command import KEEPING, Answer, Clone, app
from retrain.messages import message_of
from retrain.project import Project

MARKS = {
    "ok": ("\N{CHECK MARK}", "green"),
    "warning": ("!", "yellow"),
    "fault": ("\N{BALLOT X}", "red"),
}
TESTED = ("3.11", "3.13")
FEW_BYTES, TOO_FEW_BYTES = 10e9, 1e9  # free; an environment alone has 2.5 GB
REMOTE_SECONDS, SERVER_SECONDS = 8.0, 3.0
SHOWN = 5  # packages in a line

# Run in a process of its own, because a remote that does not answer is waited for by its library.
ASK_REMOTE = """
import sys
from dvc.repo import Repo
from retrain.servers import reachable
with Repo(sys.argv[1], config={"core": {"no_scm": True}}) as repo:
    remote = repo.cloud.get_remote()
    is_http = remote.path.startswith("http")  # where to exist means to have a page
    if is_http:
        reachable.check("the remote in .dvc/config", remote.path)
    print(remote.path, is_http or remote.fs.exists(remote.path))
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
    from rich.console import Console
    from rich.text import Text

    project.state.mkdir(exist_ok=True)
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        findings = list(pool.map(lambda name: _checked(name, project), CHECKS))

    def show() -> None:
        for finding in findings:
            line = f" {finding.check:<10} {finding.says}"
            Console().print(Text.assemble(MARKS[finding.state], line), soft_wrap=True)

    return Answer(findings, show, failed=any(finding.state == "fault" for finding in findings))


def _checked(name: str, project: Project) -> Finding:
    try:
        return Finding(name, "ok", CHECKS[name](project))
    except UserWarning as warning:
        return Finding(name, "warning", str(warning))
    except Exception as error:  # a check that fails must not hide the others
        return Finding(name, "fault", message_of(error))


def _python(_: Project) -> str:
    numbers = ".".join(map(str, sys.version_info[:3]))
    if not numbers.startswith(tuple(f"{version}." for version in TESTED)):
        raise UserWarning(f"{numbers}; Retrain is tested with {' and '.join(TESTED)}")
    return numbers


def _packages(project: Project) -> str:
    locked = dict(_locked(project))
    installed = {name: _version(name) for name in locked}
    wrong = [
        f"{name} {installed[name] or 'is missing'} (locked {version})"
        for name, version in locked.items()
        if installed[name] != version
    ]
    if not wrong:
        return f"{len(locked)} packages as in requirements.lock"
    rest = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    text = f"not as in requirements.lock: {', '.join(wrong[:SHOWN])}{rest}; "
    kind = UserWarning if all(installed.values()) else ValueError
    raise kind(text + "touch requirements-dev.lock && make setup")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _locked(project: Project) -> Iterator[tuple[str, str]]:
    """The name and the version of each package that is locked for this system."""
    from packaging.requirements import Requirement

    for line in (project.root / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement.name, str(requirement.specifier).removeprefix("==")


def _gpu(_: Project) -> str:
    from retrain import hardware

    if names := ", ".join(gpu.name for gpu in hardware.gpus()):
        return names
    if shutil.which("nvidia-smi"):
        raise UserWarning(
            f"there is a driver, but PyTorch {metadata.version('torch')} uses no GPU: see "
            "nvidia-smi and CUDA_VISIBLE_DEVICES, and install the build of PyTorch for CUDA"
        )
    return f"none; trains on {os.cpu_count()} cores"


def _disk(project: Project) -> str:
    from rich.filesize import decimal

    folders = [folder for folder in (project.store, project.state) if folder.exists()]
    free, folder = min((shutil.disk_usage(folder).free, folder) for folder in folders)
    says = f"{decimal(free)} free in {folder}"
    if free < FEW_BYTES:
        kind = ValueError if free < TOO_FEW_BYTES else UserWarning
        raise kind(f"{says}: retrain gc, or set RETRAIN_STORE to a place on another disk")
    return says


def _locks(project: Project) -> str:
    from filelock import Timeout

    from retrain.locks import locked

    file = project.state / "doctor.lock"
    with locked(file):
        try:
            with locked(file, wait=False):
                raise ValueError(f"{file.parent} lets two runs lock a file: use a local disk")
        except Timeout:
            return f"files in {project.relative(file.parent)} can be locked"


def _remote(project: Project) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_REMOTE, str(project.root)],
            capture_output=True,
            text=True,
            timeout=REMOTE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        limit = f"{REMOTE_SECONDS:.0f} s"
        raise ValueError(f"no answer within {limit}: see .dvc/config and the network") from None
    if "NoRemoteError" in done.stderr:
        raise UserWarning("there is no default remote: dvc remote add --default NAME URL")
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1].partition(": ")[2])
    place, exists = done.stdout.strip().rsplit(" ", 1)
    if exists != "True":
        raise UserWarning(f"nothing is at {place}: is it mounted? dvc push makes it")
    return f"{place} answers"


def _store(project: Project) -> str:
    from retrain.store import Store

    remote = Store.of(project).remote
    if remote is None:
        return "on this machine only; store.remote shares it with others"
    remote.has("doctor", "none")
    return f"{remote.url} answers"


def _servers(project: Project) -> str:
    from retrain import preflight
    from retrain.servers import reachable, services

    preflight.check_surroundings(project)  # those that the environment names
    if api := os.environ.get("PREFECT_API_URL"):
        reachable.check("PREFECT_API_URL", api, "/health")
    running = services.running(project)
    if not running:
        return "none run; retrain up starts them"
    for service in services.services_of(project):
        health = service.health and f"{service.url}{service.health}"
        answers = not health or reachable.request(health, seconds=SERVER_SECONDS)[0] == 200
        if service not in running or not answers:
            log = project.relative(project.logs / f"{service.name}.log")
            raise ValueError(f"{service.name} does not answer: see {log}")
    return f"{', '.join(service.name for service in running)} run"


# The clock is not checked: there is no machine that every clone may ask for the time.
CHECKS: dict[str, Callable[[Project], str]] = {
    "Python": _python,
    "packages": _packages,
    "GPU": _gpu,
    "disk": _disk,
    "locks": _locks,
    "DVC remote": _remote,
    "store": _store,
    "servers": _servers,
}
