"""The entry point of the command line `retrain`.

Exit codes: 0 success (also when the gate rejects the model), 1 a run that failed, 2 wrong usage,
130 ended by Ctrl-C, 143 ended by SIGTERM. With `--json`, standard output holds one JSON document
and nothing else; that of a command that did not succeed is `{"error": "…"}`.
"""

import gc
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from threading import current_thread, main_thread

from retrain import streams
from retrain.cli import flows, lineage, predict, registry, runs, servers, store
from retrain.cli.command import Commands, Parser, print_json
from retrain.errors import UsageError
from retrain.messages import message_of
from retrain.project import find_project

# In the order of `retrain --help`.
GROUPS = (flows, predict, registry, lineage, runs, store, servers)

TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see `retrain --help`.

    Returns:
        The exit code.
    """
    streams.prepare()
    given = sys.argv[1:] if arguments is None else arguments
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        options = _parser().parse_args(given)
        code: int = options.command(find_project(), options)
        return code
    except UsageError as error:
        return _refuse(given, error, 2)
    except KeyboardInterrupt:
        return _refuse(given, "Interrupted.", 130)
    except SystemExit as error:
        if not error.code:  # --help
            return 0
        if error.code not in (TERMINATED, signal.SIGTERM):  # Ray replaces this handler by its own
            return _refuse(given, f"A library has ended the command: {error}", 1)
        return _refuse(given, "Terminated.", TERMINATED)
    except Exception as error:
        if not (isinstance(error, ValueError | ConnectionError) or hasattr(error, "__notes__")):
            _keep(error)
        return _refuse(given, error, 1)
    finally:
        # Python looks for cycles in all that is imported when it ends: 2 s with torch and MLflow.
        gc.freeze()


def _keep(error: Exception) -> None:
    """Writes the traceback of an error to a log file, of which the person sees a few lines."""
    log = find_project().logs / f"{time.strftime('%Y%m%d-%H%M%S')}-error.log"
    with suppress(OSError):  # a full disk, or one that is read-only
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        error.add_note(f"More is in {log}")


def _parser() -> Parser:
    parser = Parser(
        prog="retrain", description="Keep an image classifier trained.", allow_abbrev=False
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = Commands(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    for group in GROUPS:
        group.add_commands(commands)
    return parser


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
        print_json({"error": message})
    return code


if __name__ == "__main__":
    sys.exit(main())
