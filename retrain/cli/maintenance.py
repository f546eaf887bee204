"""The commands that look after a clone: `doctor`, `verify`, `gc`, `reproduce`, and its servers.

A check of `doctor` returns what there is. It raises a `ValueError` about what would make a run
fail, and a `UserWarning` about what may be meant so; both say what a person can do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from packaging.utils import canonicalize_name
from rich import print as rich_print
from rich.filesize import decimal
from rich.markup import escape

from retrain import hardware, messages
from retrain.cli.command import (
    KEEPING,
    SERVING,
    Answer,
    Clone,
    Name,
    ToJson,
    Version,
    app,
    confirmed,
)
from retrain.errors import shorten
from retrain.messages import message_of
from retrain.params import load_section
from retrain.project import Project
from retrain.registry import lineage
from retrain.runs import console, preflight
from retrain.runs.console import wrapped
from retrain.servers import databases, ray_cluster, reachable
from retrain.store import Store
from retrain.workload import Serve

if TYPE_CHECKING:
    from flows.verify import Fault, Verified
    from retrain.gc import Garbage

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


def _machine(_: Project) -> str:
    if lacking := "; ".join(preflight.lacks()):
        raise ValueError(lacking)
    if fault := ray_cluster.socket_path_fault():
        raise UserWarning(f"scale.workers cannot be used: {fault}")
    space, folder = messages.least_space()
    return f"{space / 1e9:.1f} GB are left in {folder}"


def _store(project: Project) -> str:
    mirror = Store.of(project).mirror
    if mirror is None:
        return "on this machine only; store.remote shares it with others"
    mirror.has("doctor", "none")
    return f"{mirror.url} answers"


def _servers(project: Project) -> str:
    from retrain.servers import services

    databases.check(databases.of_prefect(project), "prefect")
    if file := databases.of_mlflow(project):
        databases.check(file, "mlflow")
    preflight.check_servers(project)
    if api := services.server_api(project):
        reachable.check("PREFECT_API_URL", api, "/health")
    running = services.running(project)
    for name in running:
        if not services.is_ready(project, name):
            log = project.relative(project.logs / f"{name}.log")
            raise ValueError(f"{name} does not answer: see {log}")
    if not running and (fault := services.socket_path_fault(project)):
        raise UserWarning(f"retrain up cannot start them: {fault}")
    return ", ".join(running) or "none run; retrain up starts them"


CHECKS: dict[str, Callable[[Project], str]] = {
    "packages": _packages,
    "GPU": _gpu,
    "machine": _machine,
    "DVC remote": _remote,
    "store": _store,
    "servers": _servers,
}


@app.command(group=KEEPING)
def verify(*, repair: bool = False, project: Clone) -> Answer:
    """Read the store and the registry; list what was changed.

    Example: `retrain verify --repair`

    Args:
        repair: Remove damaged artifacts, which the next run makes again.
    """
    from flows.verify import verify

    with console.shown_on(sys.stderr):
        verified = verify(project, repair)
    return Answer(verified, lambda: print(*_lines(verified), sep="\n"), not verified.is_whole)


def _lines(verified: "Verified") -> Iterator[str]:
    """The lines for a person about the store, the packages, the ledgers and the lineages."""
    for artifact in verified.damaged:
        yield f"{artifact.step} {artifact.key[:12]} is damaged: {artifact.reason}"
    if not verified.damaged:
        yield "No artifact in the store is damaged."
    elif verified.repaired:
        yield "They were removed: the next run that needs them makes them again."
    else:
        yield "Remove them, so that the next run makes them again, with: retrain verify --repair"
    for kind in ("package", "ledger", "lineage"):
        found: Sequence[Fault] = getattr(verified, f"{kind}s")
        yield from (f"The {kind} of {fault.model}: {fault.what.rstrip('.')}." for fault in found)
        if not found:
            yield f"No {kind} was changed."


@app.command(group=KEEPING)
def gc(
    *,
    days: int = 90,
    dry_run: bool = False,
    yes: Annotated[bool, Parameter(name=("--yes", "-y"))] = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Remove what no run has used for long, and no champion came from.

    It lists what would go, and asks first.

    Examples: `retrain gc --dry-run`, `retrain gc --yes`

    Args:
        days: How many days outputs, logs, reports and other files stay after their last use.
        dry_run: List what would be removed, and remove nothing.
        yes: Do not ask; without a terminal nobody can be asked.
    """
    from retrain import gc

    if not (dry_run or yes):
        found = gc.collect(project, days, dry_run=True)
        if not confirmed("\n".join([*_listed(found, "To remove"), "Remove them?"]), to_json):
            return Answer({}, lambda: print("Nothing was removed."))
    garbage = gc.collect(project, days, dry_run=dry_run)
    size = sum(piece.bytes for piece in garbage)
    lines = _listed(garbage, "To remove" if dry_run else "Removed")
    document = {"dry_run": dry_run, "bytes": size, "garbage": garbage}
    return Answer(document, lambda: print(*lines, sep="\n"))


def _listed(garbage: "Sequence[Garbage]", verb: str) -> Iterator[str]:
    from retrain.gc import total

    yield from (f"{piece.kind:<9} {piece.name} {decimal(piece.bytes)}" for piece in garbage)
    yield f"{verb}: {total(garbage)}."


@app.command(group=KEEPING)
def reproduce(version: Version, /, *, project: Clone) -> Answer:
    """Train a version again as it was, and compare the weights.

    Example: `retrain reproduce vit@champion`
    """
    from flows import predict

    model = predict.find_model(project, version)
    result = lineage.reproduce(
        project, model, lambda line: print(line, file=sys.stderr, flush=True)
    )

    def show() -> None:
        if not result["identical"]:
            _show_differences(result)
        print(result["outcome"])
        print(f"weights {result['weights']}")
        if not result["identical"]:
            print(f"     -> {result['reproduced']}")

    return Answer(result, show, failed=not result["identical"])


def _show_differences(result: Mapping[str, Any]) -> None:
    """Shows in which steps and metrics a model that was trained again is another one."""
    steps = [
        (step, "the same" if is_same else "another") for step, is_same in result["steps"].items()
    ]
    console.print_table(("step", "output"), steps)
    metrics = [(name, *map(console.number, values)) for name, values in result["metrics"].items()]
    console.print_table(("metric", "registered", "reproduced"), metrics)


@app.command(group=SERVING)
def up(*, project: Clone) -> Answer:
    """Start Prefect, a worker, the MLflow UI and the servers of champions."""
    from retrain.servers import services

    already_running = services.running(project)
    with console.shown_on(sys.stderr):
        running, deployments = services.up(project)

    def show() -> None:
        for name, url in running.items():
            state = "runs already" if name in already_running else "started"
            print(f"{name:<8} {state:<13} {url or ''}".rstrip())
        print(wrapped(f"Deployments: {', '.join(deployments)}"))
        if fault := reachable.proxy_fault():
            print(wrapped(fault))

    return Answer([{"name": name, "url": url} for name, url in running.items()], show)


@app.command(group=SERVING)
def down(*, project: Clone) -> Answer:
    """Stop what `retrain up` started."""
    from retrain.servers import services

    stopped = services.down(project)
    text = f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running."
    return Answer(stopped, lambda: print(text))


@app.command(group=SERVING)
def serve(
    workload: Name,
    /,
    *,
    port: int | None = None,
    workers: int | None = None,
    host: str = "127.0.0.1",
    project: Clone,
) -> Answer:
    """Serve the champion, and the next one when it is promoted.

    Requests are those of MLflow's scoring protocol.

    Example: `retrain serve vit --port 5001`

    Args:
        port: Where it listens; that of `serve.port` in params.yaml, or 5001.
        workers: How many processes answer; those of `serve.workers`.
        host: The address of this machine on which it listens.
    """
    from retrain.runs import records
    from retrain.servers import serving

    records.check_name(project, workload)
    section = load_section(project.params, workload, Serve)
    port = port or section.port or serving.PORT
    serving.start(workload, host, port, workers or section.workers)
