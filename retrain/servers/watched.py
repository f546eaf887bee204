"""Runs a module as `python -m` does, and ends it when its standard input is closed.

    python -m retrain.servers.watched uvicorn --port 4200

The process that starts it keeps the other end of a pipe. The system closes the pipe when that
process ends, also when it is killed, so the module never runs on alone.
"""

import os
import runpy
import signal
import sys
from threading import Thread
from time import sleep

STOP_SECONDS = 5.0


def main() -> None:
    """Runs the module that the command line names."""
    Thread(target=_end_with_input, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
