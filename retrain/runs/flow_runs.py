"""A flow of the project as Prefect has it: its server, its names and states, and who is notified.

People are notified by a webhook of the events in `Event`. What is sent is `{"text": "…", "event":
"…"}`, which Slack and similar services accept: a sentence, with the path of the report and a link
to the run. The URL, `RETRAIN_WEBHOOK_URL`, is a secret, so it comes from the environment, and is
never shown or stored.
"""

import atexit
import gc
import json
import logging
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Literal, ParamSpec, TypeVar
from uuid import UUID

from prefect import Flow as PrefectFlow, runtime, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed

from retrain.errors import RejectedDataError, UsageError
from retrain.locks import STARTING, Runs
from retrain.messages import message_of
from retrain.project import Project, find_project
from retrain.registry import tracking
from retrain.runs import console
from retrain.servers import databases
from retrain.servers.reachable import answers
from retrain.store import Store

P = ParamSpec("P")
R = TypeVar("R")
Event = Literal["promoted", "rejected", "waiting", "failed", "drift", "worse"]

URL = "RETRAIN_WEBHOOK_URL"
SECONDS = 10.0
# What happened, by the name of the state in which a flow run is completed; the others are no news.
EVENTS: Mapping[str | None, Event] = {
    "Promoted": "promoted",
    "Rejected": "rejected",
    "Waiting": "waiting",
    "Drifted": "drift",
    "Worse": "worse",
}
HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start makes a database, on a machine that may be busy
ENDED = "Its process was ended from outside."
# As Prefect's `SubprocessASGIServer` has them.
EPHEMERAL = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
TAG = "retrain"  # of a run on a server of its own: that of other people has none
# The servers of this process, by the folder of their clone, with the URLs of their APIs.
_servers: dict[Path, tuple["subprocess.Popen[bytes]", str]] = {}

logger = logging.getLogger("retrain")


class Flow(PrefectFlow[P, R]):
    """A flow of the project, of which Prefect notifies people when a run ends."""

    def __init__(
        self,
        fn: Callable[..., Any],
        imports: tuple[str, ...],
        body: Callable[..., Any] | None = None,
    ) -> None:
        """Makes the flow.

        Args:
            fn: The function; its name is that of the flow, and the first line of its docstring is
                the description.
            imports: Modules that a run needs and that take long to import.
            body: What a run calls; the function if None.
        """
        assert fn.__doc__, f"{fn.__name__} has no docstring"
        super().__init__(
            ending_in_a_state(body or fn),
            fn.__name__,
            description=fn.__doc__.strip().splitlines()[0],
            flow_run_name=partial(name_of, fn.__name__),
            persist_result=False,
            on_completion=[notify_of_end],
            on_failure=[notify_of_end],
            on_crashed=[notify_of_end],
        )
        self._imports = imports

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the flow in a Prefect flow run, on a server of its own if there is no other."""
        with ExitStack() as stack:
            if not PREFECT_API_URL.value():
                project = find_project()
                runs = Store(project.store).runs
                stack.enter_context(runs.holding(STARTING))
                meanwhile = [partial(import_module, name) for name in self._imports]
                # Which may have to make MLflow's database.
                meanwhile.append(partial(tracking.client, project))
                api = start_ephemeral_server(project, meanwhile)
                stack.enter_context(temporary_settings({PREFECT_API_URL: api}))
                stack.enter_context(tags(TAG))
                end_runs_never_held(runs)
            return super().__call__(*args, **kwargs)


def start_ephemeral_server(project: Project, meanwhile: Iterable[Callable[[], object]]) -> str:
    """Starts a Prefect server that is stopped at the end of this process, after all other clean-up.

    It uses the clone's database, and no other of the user's. A second call gives the same server.

    Prefect would start the same server by itself, and wait for it: 5 s, and 12 s if its database
    has to be created. Started here, it starts in its own process while this process imports the
    libraries that the steps need. On two cores that saved 2 s of a run, and 11 s of a first run.

    Args:
        project: The clone; its `prefect.toml` has the settings.
        meanwhile: Called while the server starts, in this order; the rest is skipped when it is
            ready. Errors are ignored here: they are raised again where the result is needed.

    Returns:
        The URL of its API.

    Raises:
        UsageError: A newer version of Prefect has made the database.
        RuntimeError: The server ended at its start, or took too long; its output is in the log.
    """
    process, api = _servers.get(project.root, (None, ""))
    if process and process.poll() is None:
        return api
    databases.check(databases.of_prefect(project), "prefect")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    app = ("--factory", "prefect.server.api.server:create_app")
    process = subprocess.Popen(
        [sys.executable, "-m", "retrain.servers.program", "ephemeral", "uvicorn", *app,
         "--host", HOST, "--port", str(port), "--log-level", "error", "--lifespan", "on"],
        cwd=project.root,
        env=databases.environment(databases.of_prefect(project)) | EPHEMERAL,
        stdin=subprocess.PIPE,  # closed when this process ends, also when it is killed
        start_new_session=True,  # Ctrl-C must not stop the server: the run still needs it
    )  # fmt: skip
    api = f"http://{HOST}:{port}/api"
    _servers[project.root] = process, api
    # Closes its input, which ends it, and waits. First to be registered, last to be called.
    atexit.register(process.communicate)
    with console.progress("starting") as show:
        show(None, "the libraries, and a Prefect server, whose database is made the first time")
        gc.disable()  # a sixth of the time of the imports, which leave nothing to collect
        for call in meanwhile:
            if answers(f"{api}/health"):
                break
            with suppress(Exception):
                call()
        gc.enable()
        gc.freeze()
        deadline = monotonic() + START_SECONDS
        while not answers(f"{api}/health"):
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError("The run's own Prefect server did not start.")
            sleep(0.1)
    return api


def _is_needed(record: logging.LogRecord) -> bool:
    """Whether a line of Prefect has more than the state: no traceback of what the user can mend."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, UsageError | RejectedDataError)


for _name in ("prefect.engine", "prefect.flow_runs"):
    logging.getLogger(_name).addFilter(_is_needed)


def ending_in_a_state(body: Callable[P, Any]) -> Callable[P, Any]:
    """A function that returns the final state of the flow run in which it is called.

    Args:
        body: What the flow run does. If it returns a document, this is the data of the state, its
            `outcome` the message, and its `state` the name, or `Completed` if it has none. After
            an error, the state is `Failed`, and the error is what the caller gets.
    """

    @wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            ended = body(*args, **kwargs)
        except Exception as error:
            return Failed(message=" ".join(message_of(error).split()), data=error)
        if not isinstance(ended, dict):
            return ended
        logger.info(ended["outcome"])  # for a person who watches a deployment
        return Completed(name=ended.get("state"), message=ended["outcome"], data=ended)

    return run


def name_of(flow: str) -> str:
    """The name of the current flow run when it begins: its flow, and what it is about."""
    parameters: Mapping[str, Any] = runtime.flow_run.parameters
    parts = (flow, subject_of(parameters), parameters.get("version"))
    return "-".join(str(part) for part in parts if part)


def subject_of(parameters: Mapping[str, Any]) -> str:
    """The workload or the model that a flow run is about, by its parameters."""
    return str(parameters.get("as_name") or parameters.get("workload") or "retrain")


def notify(event: Event, subject: str, text: str) -> None:
    """Sends an event to the webhook, if there is one; logs a warning if that fails.

    The warning has no words of the error, which may hold the URL.

    Args:
        event: What happened.
        subject: The workload or the model.
        text: What happened, with links.
    """
    url = os.environ.get(URL)
    if not url:
        return
    body = json.dumps({"text": f"{subject}: {text}", "event": event}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=SECONDS).close()
    except Exception as error:
        cause = getattr(error, "reason", None)  # of an error of `urllib`
        kind = type(cause if isinstance(cause, Exception) else error).__name__
        reason = getattr(error, "code", None) or kind
        logger.warning("The message by %s failed: %s.", URL, reason)


def notify_of_end(flow: object, flow_run: FlowRun, state: State[Any]) -> None:
    """A hook of a flow, for each of its final states.

    Prefect calls it, also when its worker sees that the process of a run was lost; `mark_crashed`
    does where no worker sees it.
    """
    event, message = EVENTS.get(state.name), state.message or ""
    if not state.is_completed():
        event = "failed"
        message = f"the run {'failed' if state.is_failed() else 'crashed'}: {message}"
    if event:
        links = _links(flow_run.id, flow_run.deployment_id is not None)
        notify(event, subject_of(flow_run.parameters), f"{message}{links}")


def emit(event: str, name: str, payload: dict[str, Any]) -> None:
    """Emits an event of Prefect about a model, on which an automation can start a run."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"retrain.model.{name}", "prefect.resource.name": name}
    emit_event(event, resource, payload=payload)


def _links(run: UUID, is_deployed: bool) -> str:
    """Lines with the path of a run's report, and with the run."""
    report = next(map(str, Path().glob(f"reports/*/{run}.html")), "")  # runs work in this folder
    place = str(run)
    if is_deployed:  # its server stays up, unlike that of a run from the command line
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=run) or place
    return (f"\nreport: {report}" if report else "") + f"\nrun: {place}"


def end_lost_runs(project: Project) -> None:
    """Marks runs as crashed in Prefect, if their process has ended.

    Only runs of this clone are known. If the server does not answer, the next call tries it again.
    """
    store = Store(project.store)
    if killed := store.runs.killed():
        try:
            mark_crashed(ENDED, killed)
        except Exception as error:  # must not keep this run from its work
            logger.warning("The runs that were killed could not be ended: %s", error)
            return
    store.runs.forget_killed()  # those of DVC, too


def end_runs_never_held(runs: Runs) -> None:
    """Marks runs as crashed that were killed when the clone's own Prefect had begun them.

    A process holds the store a moment later than Prefect makes the record of its run.

    Args:
        runs: Those of the clone. The server is the clone's own, too, but may have runs of others.
    """
    with get_client(sync_client=True) as client:
        begun = client.read_flow_runs(flow_run_filter=live(tags={"all_": [TAG]}))
    if lost := runs.lost({str(run.id) for run in begun}):
        mark_crashed(ENDED, lost)


def live(**more: Any) -> FlowRunFilter:
    """The flow runs that go on according to Prefect."""
    states = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    return FlowRunFilter.model_validate({"state": states, **more})


def mark_crashed(message: str, runs: Collection[str]) -> None:
    """Marks flow runs that go on according to Prefect, and their tasks, as crashed; tells people.

    Args:
        message: The message of the state `Crashed`.
        runs: The ids of the flow runs.
    """
    crashed: State[Any] = Crashed(message=message)
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=live(id={"any_": sorted(runs)})):
            its_tasks = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
            for task in client.read_task_runs(flow_run_filter=its_tasks):
                if task.state and not task.state.is_final():
                    client.set_task_run_state(task.id, crashed, force=True)
            client.set_flow_run_state(run.id, crashed, force=True)
            console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
            notify_of_end(None, run, crashed)
