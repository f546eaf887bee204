"""Errors of the machine and of libraries, as a person is told of them."""

import errno
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrain import messages, project
from retrain.errors import UsageError
from retrain.messages import MAX_LIBRARY_LINES, MAX_LINES, message_of
from tests import warm_python


def message(function, *arguments):
    with pytest.raises(Exception) as error:
        function(*arguments)
    return message_of(error.value)


def fill_disk():
    with Path("/dev/full").open("w", encoding="utf-8") as file:
        file.write("x")


def test_a_full_disk_is_named():
    text = message(fill_disk)
    assert text.startswith("The disk is full: make room in /")
    assert "MB are left there" in text
    assert len(text.splitlines()) == 1


def test_the_fullest_of_the_folders_that_a_run_writes_to_is_named(tmp_path, monkeypatch):
    def space(folder):
        return 0 if folder.name == "mlruns" else 10**9

    for name in ("params.yaml", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "mlruns").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(messages, "_space", space)
    monkeypatch.setattr(project, "find_project", lambda: project.Project(tmp_path))
    assert f"make room in {tmp_path}/mlruns (0 MB are left there)" in message(fill_disk)


def test_a_copy_to_a_full_disk_names_where_it_was_written():
    error = OSError(errno.ENOSPC, "No space left on device", "/tmp/from", None, "/data/to")
    assert message_of(error).startswith("The disk is full (/data/to): make room")


@pytest.mark.parametrize("space", [0, 10**9])
def test_a_server_that_fails_because_the_disk_is_full_is_explained(monkeypatch, space):
    class ServerError(Exception):
        response = SimpleNamespace(status_code=500)

    monkeypatch.setattr(messages, "_space", lambda _: space)
    said = message_of(ServerError("500 Internal Server Error"))
    assert said.startswith("500 Internal" if space else "The disk is full: make room in")


def test_the_cause_of_a_librarys_error_is_told():
    def wrap():
        try:
            fill_disk()
        except OSError as error:
            raise RuntimeError("Something went wrong.\n" * 100) from error

    assert message(wrap).startswith("The disk is full")


def test_a_missing_package_is_named():
    assert message(__import__, "boto33.client").startswith("The package boto33 is not installed")


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / ".retrain").touch()
    text = f"{tmp_path}/.retrain is a file, and a folder is needed there: move it away."
    assert message((tmp_path / ".retrain").mkdir) == text
    assert message((tmp_path / ".retrain" / "logs").mkdir) == text


def test_a_librarys_screens_of_text_are_cut(tmp_path):
    class LibraryError(Exception):
        pass

    LibraryError.__module__ = "library.errors"
    shown = message_of(LibraryError("A page.\n\n" * 100)).splitlines()
    assert len(shown) == MAX_LIBRARY_LINES + 1
    assert shown[-1] == "… (97 more lines)"
    assert len(message_of(ValueError("x" * 10_000))) < 500
    assert len(message_of(ValueError("x\n" * 100)).splitlines()) == MAX_LINES + 1
    assert message_of(UsageError("x\n" * 100)) == str(UsageError("x\n" * 100)).strip()


def test_an_error_without_a_text_has_its_name():
    assert message_of(RuntimeError()) == "RuntimeError"


OTHER_LOCALE = r"""
import locale
from pathlib import Path
from retrain import atomic, streams
streams.prepare()
assert locale.getpreferredencoding(False) != "UTF-8", "the test needs another locale"
atomic.write_text(Path("file"), "\u00b5")
print(Path("file").read_bytes(), "\u00b5")
"""


def test_the_locale_does_not_matter(tmp_path):
    environment = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [warm_python.REAL, "-c", OTHER_LOCALE], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.stdout.decode() == "b'\\xc2\\xb5' \u00b5\n", done.stderr


def test_an_error_that_a_library_has_dealt_with_explains_nothing():
    def fall_back():
        try:
            __import__("boto33")
        except ModuleNotFoundError:
            raise RuntimeError("The other way failed too.")  # noqa: B904

    assert message(fall_back) == "The other way failed too."
