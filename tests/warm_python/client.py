"""What is called instead of Python: has its command run by a fork of the server.

It imports a few small modules only, and lets signals through to the fork.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

RAY = ["-m", "ray.scripts.scripts"]  # who ends it looks for the processes below this one


def main() -> None:
    """Runs the command; ends as it does."""
    if sys.argv[1:3] == RAY:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    request = {
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109  `pathlib` takes as long as all the rest
        "files": [int(name) for name in os.listdir("/proc/self/fd")],  # noqa: PTH208
        "umask": os.umask(0o77),
    }
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{__file__}.socket")
    files = [file for file in request["files"] if file != server.fileno() and _is_open(file)]
    request["files"] = files
    message = json.dumps(request).encode()
    socket.send_fds(server, [len(message).to_bytes(8, "big")], files)
    server.sendall(message)
    fork = int.from_bytes(_receive(server, 8), "big")
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(fork, number))
    status = int.from_bytes(_receive(server, 8), "big")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def _receive(server: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = server.recv(size - len(data))
        if not more:
            sys.exit("The server of the warm Python is gone.")
        data += more
    return data


if __name__ == "__main__":
    main()
