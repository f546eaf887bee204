"""A flow of the project as Prefect has it: its server, its names and its states."""

import atexit
import gc
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar

from prefect import Flow as PrefectFlow, runtime, tags
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Failed

from retrain.errors import RejectedDataError, UsageError
from retrain.messages import message_of
from retrain.project import Project, find_project
from retrain.registry import tracking
from retrain.runs import console
from retrain.runs.liveness import OWN_SERVER, PROCESS, Processes, notify_of_crash
from retrain.runs.notifications import notify_of_end, subject_of
from retrain.servers import databases
from retrain.servers.reachable import answers

P = ParamSpec("P")
R = TypeVar("R")

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start makes a database, on a machine that may be busy
# As Prefect's `SubprocessASGIServer` has them.
EPHEMERAL = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
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
            on_crashed=[notify_of_crash],
        )
        self._imports = imports

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the flow in a Prefect flow run, on a server of its own if there is no other."""
        project = find_project()
        with Processes(project.store).hold(), tags(PROCESS), ExitStack() as stack:
            if not PREFECT_API_URL.value():
                meanwhile = [partial(import_module, name) for name in self._imports]
                # Which may have to make MLflow's database.
                meanwhile.append(partial(tracking.client, project))
                api = start_ephemeral_server(project, meanwhile)
                stack.enter_context(temporary_settings({PREFECT_API_URL: api}))
                stack.enter_context(tags(OWN_SERVER))
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
    parameters: dict[str, Any] = runtime.flow_run.parameters
    parts = (flow, subject_of(parameters), parameters.get("version"))
    return "-".join(str(part) for part in parts if part)
