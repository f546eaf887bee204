"""Two processes that do the same at the same time."""

import subprocess
import sys
from pathlib import Path

# `halfway()` says that the process is there, and waits until it may go on.
HALFWAY = """
import sys

def halfway():
    print("halfway", flush=True)
    sys.stdin.readline()

"""


def run_two(program: str, *arguments: object) -> list[str]:
    """Runs a program twice; both are halfway before the first goes on, and then the second.

    Args:
        program: Python, which calls `halfway()` once.
        *arguments: Its `sys.argv[1:]`.

    Returns:
        The standard error of each; empty if it has succeeded.
    """
    command = [sys.executable, "-c", HALFWAY + program, *map(str, arguments)]
    pipe, root = subprocess.PIPE, Path(__file__).parents[1]
    both = []
    for _ in range(2):
        both.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=root))
        assert both[-1].stdout.readline() == b"halfway\n", both[-1].stderr.read()
    said = []
    for each in both:
        error = each.communicate(b"\n")[1].decode()
        said.append(error if each.returncode else "")
    return said
