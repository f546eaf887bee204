"""A Python that starts in a moment: in a fork of a process that has imported the libraries.

Much of the time of the tests would be the import of the same libraries, again and again, by the
processes of pytest-xdist, of Ray's workers and of registered packages. The program of `start()` is
called as Python is. It asks a server, which has imported the libraries once, for a fork that runs
what was asked for with the caller's arguments, environment, folder and open files; the fork imports
this project's code itself. A killed program takes its fork with it.

Some tests of each kind of process start Python as a user does.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from socket import AF_UNIX, socket

import psutil

from tests import templates

REAL = str(Path(sys.prefix, "bin", "python"))

_server: subprocess.Popen[bytes]  # it ends when this process closes its standard input


def start() -> str:
    """Starts a server for this process, which imports the libraries when it is first called.

    That of a process which the warm Python runs has them already.

    Returns:
        The path of the program.
    """
    global _server
    folder = Path(tempfile.mkdtemp(prefix="python-", dir=templates.FOLDER))
    program = folder / "python"
    here = Path(__file__).parent
    client = (here / "client.py").read_text(encoding="utf-8")
    program.write_text(f"#!{REAL} -IS\n{client}", encoding="utf-8")
    program.chmod(0o755)
    with socket(AF_UNIX) as listener:
        listener.bind(f"{program}.socket")
        listener.listen(100)
        _server = subprocess.Popen(
            [sys.executable, "-I", here / "server.py", program, str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the programs
        )
    return str(program)


def processes() -> list[psutil.Process]:
    """Those below this one, and the forks of its server."""
    server = int(Path(f"{sys.executable}.pid").read_text(encoding="utf-8"))
    above = (psutil.Process(), psutil.Process(server))
    return [each for process in above for each in process.children(recursive=True)]
