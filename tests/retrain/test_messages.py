"""Errors of the machine and of libraries, as a person is told of them."""

import errno
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrain import messages, project
from retrain.errors import UsageError
from retrain.messages import MAX_LIBRARY_LINES, MAX_LINES, message_of


@pytest.fixture
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_person_reads_the_times_of_this_machine(in_berlin):
    assert messages.local_time("2026-11-30T03:00:00+00:00") == "2026-11-30 04:00 CET"
    text = "from run 1 of 2026-07-01T23:30:05+00:00, not 2026-07-01T23:30:05+02:00"
    expected = "from run 1 of 2026-07-02 01:30 CEST, not 2026-07-01T23:30:05+02:00"
    assert messages.with_local_times(text) == expected


def fill_disk():
    with Path("/dev/full").open("w", encoding="utf-8") as file:
        file.write("x")


def wrap():
    try:
        fill_disk()
    except OSError as error:
        raise RuntimeError("Something went wrong.\n" * 100) from error


@pytest.mark.parametrize("fail", [fill_disk, wrap])
def test_a_full_disk_is_named_whatever_the_error(fail):
    with pytest.raises((OSError, RuntimeError)) as error:
        fail()
    text = message_of(error.value)
    assert text.startswith("The disk is full: make room in /")
    assert len(text.splitlines()) == 1


def test_the_fullest_of_the_folders_that_a_run_writes_to_is_named(tmp_path, monkeypatch):
    def usage(folder):
        return SimpleNamespace(free=10 if folder.name in ("mlruns", "of ray") else 10**9)

    (tmp_path / "mlruns").mkdir()
    monkeypatch.setattr(messages.shutil, "disk_usage", usage)
    monkeypatch.setattr(messages, "find_project", lambda: project.Project(tmp_path))
    full = f"The disk is full: make room in {tmp_path}/mlruns (0 MB are left there)"
    for error in (OSError(errno.ENOSPC, "full"), RuntimeError("500 Internal Server Error")):
        assert message_of(error).startswith(full)
    assert message_of(ValueError("lr is wrong")) == "lr is wrong"
    (tmp_path / "mlruns").rmdir()
    assert message_of(RuntimeError("500 Internal Server Error")) == "500 Internal Server Error"
    (tmp_path / "of ray").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "of ray"))
    full = f"The disk is full: make room in {tmp_path}/of ray (0 MB are left there)"
    assert message_of(RuntimeError("Timed out waiting for file")).startswith(full)


def test_errors_that_name_each_other_as_their_cause_are_told_all_the_same():
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__context__ = second, first
    assert message_of(first) == "first"


def test_a_librarys_screens_of_text_are_cut():
    shown = message_of(RuntimeError("A page.\n\n" * 100)).splitlines()
    assert len(shown) == MAX_LIBRARY_LINES + 1
    assert shown[-1] == "… (97 more lines)"
    assert len(message_of(ValueError("x" * 10_000))) < 500
    assert len(message_of(ValueError("x\n" * 100)).splitlines()) == MAX_LINES + 1
    assert message_of(UsageError("x\n" * 100)) == str(UsageError("x\n" * 100)).strip()
    assert message_of(RuntimeError()) == "RuntimeError"


OTHER_LOCALE = r"""
import locale
from pathlib import Path
from retrain import disk, messages
messages.prepare()
assert locale.getpreferredencoding(False) != "UTF-8", "the test needs another locale"
disk.write_text(Path("file"), "\u00b5")
print(Path("file").read_bytes(), "\u00b5")
"""


def test_the_locale_does_not_matter(tmp_path):
    environment = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", OTHER_LOCALE],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
    )
    assert done.stdout.decode() == "b'\\xc2\\xb5' \u00b5\n", done.stderr


def test_lines_end_between_words_and_a_path_stays_whole():
    path = "a/long/path/of/which/nobody/wants/two/halves"
    text = messages.wrapped(f"Read {path} first.\nThen go on with that.", "  ", width=20)
    assert text.split("\n") == ["Read", f"  {path}", "  first.", "Then go on with", "  that."]
    assert messages.wrapped(f"Read {path} first.") == f"Read {path} first."  # no terminal


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
