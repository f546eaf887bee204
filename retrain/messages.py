"""What a person is told about an error: a few lines, and what to do."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from retrain.errors import UsageError

MAX_LINES = 16
MAX_LIBRARY_LINES = 3  # of an error that a library raises
MAX_WIDTH = 400
MIN_BYTES = 1_000_000  # with less, a database cannot be written
INTERNAL_SERVER_ERROR = 500

_FULL = ("No space left on device", "database or disk is full", "Disk quota exceeded")
_READ_ONLY = ("Read-only file system", "attempt to write a readonly database")


def message_of(error: BaseException) -> str:
    """The message of an error for a person.

    An error of the machine (a full disk, a missing package) is explained. The text of a library is
    cut to a few lines; the traceback in the log has all of it.
    """
    return _explained(error) or _shortened(error)


def _explained(error: BaseException) -> str | None:
    """The explanation of an error of the machine; None for another one, and for one of ours."""
    if isinstance(error, ValueError):
        return None
    for each in _causes(error):
        text, number = str(each), getattr(each, "errno", None)
        # Of a copy, the second is where it was written to.
        name = getattr(each, "filename2", None) or getattr(each, "filename", None)
        place = f" ({name})" if name else ""
        if number in (errno.ENOSPC, errno.EDQUOT) or any(part in text for part in _FULL):
            return f"The disk is full{place}: make room {_fullest()}, or use another disk."
        if _may_be_of_full_disk(each) and _is_full():
            return f"The disk is full: make room {_fullest()}, or use another disk."
        if number == errno.EROFS or any(part in text for part in _READ_ONLY):
            return f"This disk is read-only{place}, and the run has to write: use another one."
        if each not in (error, error.__cause__):  # an error that a library has dealt with
            continue
        if isinstance(each, ModuleNotFoundError) and each.name:
            package = each.name.split(".")[0]
            return f"The package {package} is not installed here: pip install {package}"
        if isinstance(each, NotADirectoryError | FileExistsError) and name:
            for above in (Path(name), *Path(name).parents):
                if above.is_file():
                    return f"{above} is a file, and a folder is needed there: move it away."
        if isinstance(each, PermissionError) and name:
            return f"Permission denied for {name}: change its owner or mode, or use another place."
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and the errors that led to it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def _may_be_of_full_disk(error: BaseException) -> bool:
    """Whether an error hides why a database was not written: a server's, or one of SQLite."""
    answer = getattr(error, "response", None)
    failed = getattr(answer, "status_code", None) == INTERNAL_SERVER_ERROR
    return failed or "disk I/O error" in str(error)


def _is_full() -> bool:
    return min(_left().values()) < MIN_BYTES


def _fullest() -> str:
    """Where the least space is left, of the folders that a run writes to."""
    left = _left()
    folder = min(left, key=left.__getitem__)
    return f"in {folder} ({left[folder] / 1e6:.0f} MB are left there)"


def _left() -> dict[Path, int]:
    """The bytes that are left in each of the folders that a run writes to."""
    from retrain.project import find_project

    folders = [Path(os.environ.get("TMPDIR", "/tmp")), Path.cwd()]
    try:
        folders.insert(0, Path(tempfile.gettempdir()))
        project = find_project()
        folders += [project.store, project.state, project.root / "mlruns"]
    except (UsageError, OSError):
        pass
    return {folder: _space(folder) for folder in folders if folder.exists()}


def _space(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _shortened(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UsageError):
        return text
    ours = type(error).__module__.startswith(("builtins", "retrain", "tasks", "flows", "models"))
    limit = MAX_LINES if ours else MAX_LIBRARY_LINES
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= MAX_WIDTH else f"{line[:MAX_WIDTH]} …" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"… ({len(lines) - limit} more lines)")
    return "\n".join(shown)
