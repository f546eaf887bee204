"""Errors of the machine and of libraries, as a person is told of them."""

import errno
import os
from types import SimpleNamespace

import pytest

from retrain import messages, project
from retrain.errors import UsageError


def test_a_full_disk_is_named_whatever_the_error():
    error = RuntimeError("Something went wrong.\n" * 100)
    error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for each in (error, error.__cause__):
        text = messages.message_of(each)
        assert text.startswith("The disk is full: make room in /")
        assert len(text.splitlines()) == 1


ENDED = "500 Internal Server Error"  # as a server says that has no space


@pytest.mark.parametrize(
    ("place", "error", "is_named"),
    [
        ("mlruns", OSError(errno.ENOSPC, "full"), True),
        ("mlruns", RuntimeError(ENDED), True),
        ("mlruns", ValueError(ENDED), False),  # our own
        ("of ray", RuntimeError(ENDED), True),
        ("/dev/shm", RuntimeError(ENDED), True),  # where Python keeps locks
        (".retrain", RuntimeError(ENDED), True),
        ("elsewhere", RuntimeError(ENDED), False),
    ],
)
def test_the_fullest_of_the_folders_that_a_run_writes_to_is_named(
    tmp_path, monkeypatch, place, error, is_named
):
    def usage(folder):
        return SimpleNamespace(free=10 if folder == tmp_path / place else 10**9)

    (tmp_path / place).mkdir(exist_ok=True)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "of ray"))
    monkeypatch.setattr(messages.shutil, "disk_usage", usage)
    monkeypatch.setattr(messages, "find_project", lambda: project.Project(tmp_path))
    full = f"The disk is full: make room in {tmp_path / place} (0 MB are left there)"
    assert messages.message_of(error).startswith(full if is_named else ENDED)


def test_errors_that_name_each_other_as_their_cause_are_told_all_the_same():
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__context__ = second, first
    assert messages.message_of(first) == "first"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RuntimeError("A page.\n\n" * 100), "A page.\nA page.\nA page.\n… (97 more lines)"),
        (RuntimeError("A page.\n" * 3), "A page.\nA page.\nA page."),
        (RuntimeError(), "RuntimeError"),
        (ValueError("x" * 10_000), "x" * 400 + " …"),
        (ValueError("x\n" * 100), "x\n" * 16 + "… (84 more lines)"),
        (UsageError("x\n" * 100), ("x\n" * 100).strip()),
    ],
)
def test_screens_of_text_are_cut_if_they_are_not_for_the_user(error, shown):
    assert messages.message_of(error) == shown
