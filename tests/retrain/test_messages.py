"""Errors of the machine and of libraries, as a person is told of them."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrain import messages, project
from retrain.errors import UsageError
from retrain.messages import MAX_LIBRARY_LINES, MAX_LINES, message_of


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
