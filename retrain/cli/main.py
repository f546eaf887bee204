"""The entry point of the command line `retrain`.

Exit codes: 0 success (also when the gate rejects the model), 1 a run that failed, 2 wrong usage,
130 ended by Ctrl-C, 143 ended by SIGTERM. With `--json`, standard output holds one JSON document
and nothing else; that of a command that did not succeed is `{"error": "…"}`.
"""

import gc
import json as json_format
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from threading import current_thread, main_thread
from typing import Annotated, Any

from cyclopts import CycloptsError, Parameter

from retrain.cli import data, flows, inference, inspection, maintenance
from retrain.cli.command import Answer, app, in_folder_of
from retrain.errors import UsageError
from retrain.messages import message_of
from retrain.project import find_project
from retrain.runs import console

# The modules with the commands, in the order of `retrain --help`.
MODULES = (data, flows, inference, inspection, maintenance)

app["step"].show = False  # for dvc.yaml

TERMINATED = 128 + signal.SIGTERM


@app.meta.default
def run(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: bool = False,
    debug: bool = False,
) -> int:
    """Runs the command that the user has named, and prints its answer.

    Args:
        json: Print one JSON document.
        debug: Show the traceback of an error.
    """
    if not tokens:
        tokens = ("--help",)
    command, bound, injected = app.parse_args(tokens, exit_on_error=False, print_error=False)
    values: dict[str, Any] = {"to_json": json} if "to_json" in injected else {}
    if "project" not in injected:
        answer = command(*bound.args, **bound.kwargs, **values)
    else:
        project = find_project()
        # Prefect reads its settings, and those of this clone, when it is imported.
        if "PREFECT_HOME" not in os.environ:
            home = project.state / "prefect"
            home.mkdir(parents=True, exist_ok=True)
            os.environ["PREFECT_HOME"] = str(home)
        if (project.root / ".env").exists():
            from retrain.servers import services

            services.forget_ended(project)
        with in_folder_of(project):
            answer = command(*bound.args, **bound.kwargs, **values, project=project)
    if not isinstance(answer, Answer):  # of --help, --version and --install-completion
        return 0
    if json:
        print(json_format.dumps(answer.document, indent=1, default=asdict))
    elif answer.show:
        answer.show()
    return int(answer.failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see `retrain --help`.

    Returns:
        The exit code.
    """
    console.prepare()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        command, bound, _ = app.meta.parse_args(words, exit_on_error=False, print_error=False)
        return int(command(*bound.args, **bound.kwargs) or 0)
    except CycloptsError as error:
        command_line = " ".join(["retrain", *(error.command_chain or ()), "--help"])
        return _refuse(words, UsageError(f"{error} (see: {command_line})"), 2)
    except UsageError as error:
        return _refuse(words, error, 2)
    except KeyboardInterrupt:
        return _refuse(words, "Interrupted.", 130)
    except SystemExit as error:
        if error.code not in (TERMINATED, signal.SIGTERM):  # Ray replaces this handler by its own
            return _refuse(words, f"A library has ended the command: {error}", 1)
        return _refuse(words, "Terminated.", TERMINATED)
    except Exception as error:
        if not (isinstance(error, ValueError | ConnectionError) or hasattr(error, "__notes__")):
            _write_traceback(error)
        return _refuse(words, error, 1)
    finally:
        # Python looks for cycles in all that is imported when it ends: 2 s with torch and MLflow.
        gc.freeze()


def _write_traceback(error: Exception) -> None:
    """Writes the traceback of an error to a log file, of which the person sees a few lines."""
    log = find_project().logs / f"{time.strftime('%Y%m%d-%H%M%S')}-error.log"
    with suppress(OSError):  # a full disk, or one that is read-only
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        error.add_note(f"More is in {log}")


def _terminate(*_: object) -> None:
    """Ends the command with an exception, as Ctrl-C does, so that clean-up code runs."""
    raise SystemExit(TERMINATED)


def _refuse(arguments: Sequence[str], error: Exception | str, code: int) -> int:
    """Says why a command did not succeed; returns the exit code."""
    message = error if isinstance(error, str) else message_of(error)
    if "--debug" in arguments and isinstance(error, Exception):
        traceback.print_exception(error)
    print(f"retrain: {message}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()) if code == 1 else ():
        print(note, file=sys.stderr)
    if "--json" in arguments:
        print(json_format.dumps({"error": message}, indent=1))
    return code
