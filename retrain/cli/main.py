"""The entry point of the command line `retrain`.

Exit codes: 0 success (also when the gate rejects the model), 1 a run that failed, 2 wrong usage,
130 ended by Ctrl-C, 143 ended by SIGTERM. With `--json`, standard output holds one JSON document
and nothing else.
"""

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from threading import current_thread, main_thread

from retrain.cli import flows, registry, runs, servers, store
from retrain.cli.command import Commands
from retrain.errors import UsageError
from retrain.project import find_project

GROUPS = (flows, registry, runs, store, servers)  # in the order of `retrain --help`

TERMINATED = 128 + signal.SIGTERM


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see `retrain --help`.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    if current_thread() is main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code: int = options.command(find_project(), options)
        return code
    except UsageError as error:
        return _refuse(options, error, 2)
    except KeyboardInterrupt:
        return _refuse(options, "Interrupted.", 130)
    except SystemExit as error:
        if error.code not in (TERMINATED, signal.SIGTERM):  # Ray replaces this handler by its own
            raise
        return _refuse(options, "Terminated.", TERMINATED)
    except Exception as error:
        return _refuse(options, error, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retrain", description="Keep an image classifier trained."
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = Commands(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    for group in GROUPS:
        group.add_commands(commands)
    return parser


def _terminate(*_: object) -> None:
    """Ends the command with an exception, as Ctrl-C does, so that clean-up code runs."""
    raise SystemExit(TERMINATED)


def _refuse(options: argparse.Namespace, error: Exception | str, code: int) -> int:
    if options.debug and isinstance(error, Exception):
        traceback.print_exception(error)
    print(f"retrain: {str(error).strip() or type(error).__name__}", file=sys.stderr)
    if code == 1:
        print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
