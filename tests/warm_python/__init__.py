"""A Python that starts in a moment: in a fork of a process that has imported the libraries.

Much of the time of the tests would be the import of the same libraries, again and again, by the
processes of Ray's workers and of registered packages. The program `executable()` is called as
Python is. It asks a server, which has imported the libraries once, for a fork that runs what was
asked for with the caller's arguments, environment, folder and open files; the fork imports this
project's code itself. A killed program takes its fork with it.

Some tests of each kind of process start Python as a user does.
"""

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from socket import AF_UNIX, socket

from tests import templates

_servers = []  # each ends when this process does, which closes its standard input


@functools.cache
def executable() -> str:
    """The path of the program, whose server imports the libraries when it is first called."""
    folder = Path(tempfile.mkdtemp(prefix="python-", dir=templates.FOLDER))
    program = folder / "python"
    here = Path(__file__).parent
    client = (here / "client.py").read_text(encoding="utf-8")
    program.write_text(f"#!{sys.executable} -IS\n{client}", encoding="utf-8")
    program.chmod(0o755)
    with socket(AF_UNIX) as listener:
        listener.bind(f"{program}.socket")
        listener.listen(100)
        server = subprocess.Popen(
            [sys.executable, "-I", str(here / "server.py"), str(program), str(listener.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for the programs
        )
    _servers.append(server)
    return str(program)
