"""Imports libraries once, and runs Python commands in forks.

    python -I server.py PROGRAM LISTENER

`PROGRAM` is the path of `client.py` as it is called; `LISTENER` is the number of an open socket
that listens. The server imports the libraries when it is first called, and ends when its standard
input does.
"""

import atexit
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import ssl
import sys
import weakref
from contextlib import suppress
from functools import cache, partialmethod
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

WITHOUT_VALUE = ("-B", "-E", "-I", "-S", "-s", "-u")
MAX_FILES = 250


def serve(program: Path, listener: socket.socket) -> None:
    """Answers until the standard input ends."""
    number = str(os.getpid())  # it may be a fork of another server
    Path(f"{program}.pid").write_text(number, encoding="utf-8")
    called, _, _ = select.select([listener, sys.stdin], [], [])
    if listener in called:
        _import_libraries(program.parent)
    wakes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    forks: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for pid in forks:
                        os.kill(pid, signal.SIGKILL)
                    return
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    pid = _fork(client, program)
                    forks[pid] = client
                    selector.register(client, selectors.EVENT_READ, pid)
                elif key.fileobj == wakes:
                    os.read(wakes, 1000)
                else:  # nothing is ever sent, so the client has ended
                    selector.unregister(key.fileobj)
                    forks.pop(key.data).close()
                    os.kill(key.data, signal.SIGKILL)
            for pid, status in _ended():
                if client := forks.pop(pid, None):
                    selector.unregister(client)
                    with suppress(OSError):
                        client.sendall(status.to_bytes(8, "big"))
                    client.close()


def _import_libraries(folder: Path) -> None:
    # By its path: the forks import this project's code themselves.
    ours = runpy.run_path(str(Path(__file__).parents[1] / "libraries.py"))
    if ours["LIBRARIES"][0] in sys.modules:
        return  # this is a fork of another server
    gc.set_threshold(50_000)  # the default costs an eighth of the time of the imports
    for name in ours["LIBRARIES"]:
        import_module(name)
    _compute_once(folder)
    assert "ray" not in sys.modules
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch has a thousand, for nothing
    ours["forget"]()
    gc.collect()
    gc.freeze()  # else each fork looks through it, and so copies all of it


def _compute_once(folder: Path) -> None:
    """Lets the forks find what the libraries would compute in each of them."""
    import certifi
    from jinja2 import Environment, FileSystemBytecodeCache
    from mlflow.store.db import utils
    from mlflow.utils import requirements_utils

    requirements_utils._init_packages_to_modules_map()
    newest = utils._get_latest_schema_revision()
    utils._get_latest_schema_revision = lambda: newest
    ssl.create_default_context = cache(ssl.create_default_context)
    ssl.create_default_context(cafile=certifi.where())  # of each client of Prefect's
    # The templates of the Data Docs.
    cached = partialmethod(Environment.__init__, bytecode_cache=FileSystemBytecodeCache(folder))
    Environment.__init__ = cached  # type: ignore[assignment, method-assign]


def _ended() -> list[tuple[int, int]]:
    """The forks that have ended, with their status."""
    ended = []
    with suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(one)
    return ended


def _fork(client: socket.socket, program: Path) -> int:
    """Runs a client's command in a fork; returns its process id."""
    head, files, _, _ = socket.recv_fds(client, 8, MAX_FILES)
    message = b""
    while len(message) < int.from_bytes(head, "big"):
        message += client.recv(1 << 20)
    request = json.loads(message)
    if not (pid := os.fork()):
        code = 1
        try:
            client.close()
            _become(request, files, program)
            code = _run(request["arguments"])
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(code)
    for file in files:
        os.close(file)
    with suppress(OSError):  # it was killed meanwhile: the selector tells that next
        client.sendall(pid.to_bytes(8, "big"))
    return pid


def _become(request: dict[str, Any], files: list[int], program: Path) -> None:
    """Takes over a client's files, folder and environment."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    above = max([*files, *request["files"]]) + 1
    moved = [os.dup2(file, above + number) for number, file in enumerate(files)]
    os.closerange(3, above)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
    os.closerange(above, above + len(moved))
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = str(program)


def _run(arguments: list[str]) -> int:
    """Runs a command as Python does; returns its exit code."""
    import threading

    flags = []
    while arguments and arguments[0] in WITHOUT_VALUE:
        flags.append(arguments.pop(0))
    isolated = "-I" in flags
    sys.dont_write_bytecode = "-B" in flags
    paths = [] if isolated else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path]
    kind = arguments[0]
    try:
        try:
            if kind == "-m":
                sys.argv = arguments[1:]
                sys.path[:0] = [] if isolated else [str(Path.cwd())]
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            elif kind == "-c":
                sys.argv = ["-c", *arguments[2:]]
                sys.path[:0] = [] if isolated else [""]
                main = sys.modules["__main__"] = ModuleType("__main__")
                exec(compile(arguments[1], "<string>", "exec"), vars(main))
            else:
                sys.argv = arguments
                sys.path[:0] = [] if isolated else [str(Path(kind).absolute().parent)]
                runpy.run_path(kind, run_name="__main__")
        finally:
            with suppress(BaseException):
                threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
