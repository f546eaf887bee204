"""The command `doctor`: whether this machine has what Retrain needs, a line for each check."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from retrain import TELEMETRY_OFF
from retrain.cli.command import KEEPING, Answer, Clone, app
from retrain.messages import message_of
from retrain.project import Project

State = Literal["ok", "warning", "fault"]

MARKS = {
    "ok": ("\N{CHECK MARK}", "green"),
    "warning": ("!", "yellow"),
    "fault": ("\N{BALLOT X}", "red"),
}
TESTED = ((3, 11), (3, 13))  # versions of Python
FEW_BYTES, TOO_FEW_BYTES = 10e9, 1e9  # free; an environment alone has 2.5 GB
REMOTE_SECONDS, SERVER_SECONDS = 8.0, 3.0
SKEW_SECONDS = 60.0
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
        says: What there is.
        remedy: What a person can do about it; empty if nothing has to be done.
    """

    check: str
    state: State
    says: str
    remedy: str = ""


# Returns the state, what there is, and what to do about it.
Check = Callable[[Project], tuple[State, str, str]]


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
            remedy = f": {finding.remedy}" if finding.remedy else ""
            text = Text.assemble(
                MARKS[finding.state], f" {finding.check:<10} {finding.says}{remedy}"
            )
            Console().print(text, soft_wrap=True)

    return Answer(findings, show, failed=any(finding.state == "fault" for finding in findings))


def _checked(name: str, project: Project) -> Finding:
    try:
        return Finding(name, *CHECKS[name](project))
    except Exception as error:  # a check that fails must not hide the others
        return Finding(name, "fault", message_of(error))


def _python(_: Project) -> tuple[State, str, str]:
    says = ".".join(map(str, sys.version_info[:3]))
    tested = " and ".join(".".join(map(str, numbers)) for numbers in TESTED)
    if sys.version_info[:2] in TESTED:
        return "ok", says, ""
    return "warning", says, f"Retrain is tested with {tested}"


def _packages(project: Project) -> tuple[State, str, str]:
    missing, others, total = [], [], 0
    for name, locked in _locked(project):
        total += 1
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
        else:
            if installed != locked:
                others.append(f"{name} {installed} (locked {locked})")
    if not missing + others:
        return "ok", f"{total} packages as in requirements.lock", ""
    listed = [*(f"{name} is missing" for name in missing), *others]
    rest = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    says = f"not as in requirements.lock: {', '.join(listed[:SHOWN])}{rest}"
    return "fault" if missing else "warning", says, "touch requirements-dev.lock && make setup"


def _locked(project: Project) -> Iterator[tuple[str, str]]:
    """The name and the version of each package that is locked for this system."""
    from packaging.requirements import Requirement

    for line in (project.root / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement.name, str(requirement.specifier).removeprefix("==")


def _gpu(_: Project) -> tuple[State, str, str]:
    from retrain import hardware

    if found := hardware.gpus():
        return "ok", ", ".join(gpu.name for gpu in found), ""
    if not shutil.which("nvidia-smi"):
        return "ok", f"none; trains on {os.cpu_count()} cores", ""
    torch = metadata.version("torch")
    if torch.endswith("+cpu"):
        return (
            "warning",
            f"there is a driver, but PyTorch {torch} is for CPUs",
            "pip install its build with CUDA",
        )
    return "warning", "the driver shows none", "see nvidia-smi and CUDA_VISIBLE_DEVICES"


def _ports(project: Project) -> tuple[State, str, str]:
    from retrain.servers import services
    from retrain.servers.ray_cluster import HOST

    running, ports = services.running(project), []
    for service in services.services_of(project):
        if service.other_port and HOST in (service.url or ""):
            ports.append(f"{service.name} {(service.url or '').rpartition(':')[2]}")
            if service not in running:
                try:
                    services.refuse_taken_port(service)
                except ValueError as error:  # only `retrain up` needs it
                    return "warning", str(error).rstrip("."), ""
    return "ok", f"free or ours: {', '.join(ports)}", ""


def _disk(project: Project) -> tuple[State, str, str]:
    from rich.filesize import decimal

    folders = [folder for folder in (project.store, project.state) if folder.exists()]
    free, folder = min((shutil.disk_usage(folder).free, folder) for folder in folders)
    says, remedy = f"{decimal(free)} free in {folder}", "retrain gc, or set RETRAIN_STORE"
    if free < TOO_FEW_BYTES:
        return "fault", says, remedy
    return ("warning", says, remedy) if free < FEW_BYTES else ("ok", says, "")


def _locks(project: Project) -> tuple[State, str, str]:
    from filelock import Timeout

    from retrain.locks import locked

    file = project.state / "doctor.lock"
    with locked(file):
        try:
            with locked(file, wait=False):
                return (
                    "fault",
                    f"{project.state} lets two processes lock a file",
                    "use a local disk",
                )
        except Timeout:
            return "ok", f"files in {project.relative(project.state)} can be locked", ""


def _remote(project: Project) -> tuple[State, str, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_REMOTE, str(project.root)],
            capture_output=True,
            text=True,
            timeout=REMOTE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return (
            "fault",
            f"no answer within {REMOTE_SECONDS:.0f} s",
            "see .dvc/config and the network",
        )
    if done.returncode == 0:
        place, exists = done.stdout.strip().rsplit(" ", 1)
        if exists == "True":
            return "ok", f"{place} answers", ""
        return "warning", f"nothing is at {place}", "is it mounted? dvc push makes it"
    reason = done.stderr.strip().splitlines()[-1].partition(": ")[2] or done.stderr.strip()
    if "NoRemoteError" in done.stderr:
        return "warning", "there is no default remote", "dvc remote add --default NAME URL"
    return "fault", reason[:200], "see .dvc/config and the network"


def _servers(project: Project) -> tuple[State, str, str]:
    from retrain import preflight
    from retrain.servers import reachable, services

    preflight.check_surroundings(project)  # those that the environment names
    if api := os.environ.get("PREFECT_API_URL"):
        reachable.check("PREFECT_API_URL", api, "/health")
    running = services.running(project)
    if not running:
        return "ok", "none run; retrain up starts them", ""
    dead = {service.name for service in services.services_of(project)} - {
        one.name for one in running
    }
    for service in running:
        if service.health:
            status, _ = reachable.request(f"{service.url}{service.health}", seconds=SERVER_SECONDS)
            dead |= set() if status == 200 else {service.name}
    if dead:
        return (
            "fault",
            f"{', '.join(sorted(dead))} does not answer",
            "see retrain logs NAME; retrain up",
        )
    return "ok", f"{', '.join(service.name for service in running)} run", ""


def _clock(project: Project) -> tuple[State, str, str]:
    """Compares the clock with that of the store's file system, which may be another machine's."""
    file = project.state / "doctor.clock"
    began = time.time()
    file.write_text("", encoding="utf-8")
    skew = abs(file.stat().st_mtime - began)
    file.unlink()
    zone = time.strftime("%Z")
    if skew < SKEW_SECONDS:
        return "ok", f"agrees with that of the file system; times are shown in {zone}", ""
    return "warning", f"{skew:.0f} s from that of the file system", "set both by NTP"


def _git(project: Project) -> tuple[State, str, str]:
    if not project.is_in_git():
        return (
            "warning",
            "this folder is in no git repository, so no commit is recorded",
            "git init",
        )
    user = [
        project.git("config", "--default", "", "--get", key) for key in ("user.name", "user.email")
    ]
    if not all(user):
        return (
            "warning",
            "who commits is not set",
            "git config --global user.name NAME; … user.email",
        )
    return "ok", f"{user[0]} <{user[1]}>", ""


def _telemetry(_: Project) -> tuple[State, str, str]:
    on = [name for name, off in TELEMETRY_OFF.items() if os.environ.get(name) != off]
    if on:
        return "warning", f"the environment sets {', '.join(on)} otherwise", "unset them"
    return "ok", "off in all libraries", ""


CHECKS: dict[str, Check] = {
    "Python": _python,
    "packages": _packages,
    "GPU": _gpu,
    "disk": _disk,
    "locks": _locks,
    "clock": _clock,
    "git": _git,
    "DVC remote": _remote,
    "servers": _servers,
    "ports": _ports,
    "telemetry": _telemetry,
}
