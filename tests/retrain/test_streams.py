"""Standard streams that are closed, or that nobody reads."""

import subprocess
import sys

import pytest

TALKS_ON = """
import sys
from pathlib import Path
from retrain import messages
messages.prepare()
for number in range(20_000):
    print("a line", number)
Path("reached").touch()
sys.exit(3)
"""

OPENS_A_FILE = """
import os, subprocess, sys
from retrain import messages
messages.prepare()
with open("database", "wb") as file:
    assert file.fileno() > 2, file.fileno()
    print("out")
    print("err", file=sys.stderr)
    assert sys.stdin.read() == ""
    subprocess.run(["sh", "-c", "echo child; echo child >&2; cat"], check=True)
assert os.path.getsize("database") == 0
"""


def test_a_reader_that_ends_does_not_end_the_program(tmp_path):
    program = [sys.executable, "-c", TALKS_ON]
    with subprocess.Popen(
        program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 3
    assert (tmp_path / "reached").exists()


@pytest.mark.parametrize("closed", [">&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_get_into_other_files(tmp_path, closed):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", OPENS_A_FILE],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ([] if " >&-" in f" {closed}" else ["child", "out"])
    assert sorted(done.stderr.split()) == ([] if "2>&-" in closed else ["child", "err"])
