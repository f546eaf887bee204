"""What a person is told about an error: a few lines, and what to do."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from retrain.errors import UsageError

MAX_LINES = 16
MAX_LIBRARY_LINES = 3  # of an error that is not about what the user has given
MAX_WIDTH = 400
MIN_BYTES = 1_000_000  # with less, a database cannot be written

# How a full disk and a read-only one are recognised: by the number of an error, or by its text.
FULL = (
    (errno.ENOSPC, errno.EDQUOT),
    ("No space left on device", "database or disk is full", "Disk quota exceeded"),
)
READ_ONLY = ((errno.EROFS,), ("Read-only file system", "attempt to write a readonly database"))
# What is told of other errors of the machine, by their classes.
IN_THE_WAY = "A folder is needed at {name}, where a file is in the way: move it away."
SENTENCES: tuple[tuple[type[Exception], str], ...] = (
    (ModuleNotFoundError, "The package {name} is not installed here: pip install {name}"),
    (
        PermissionError,
        "Permission denied for {name}: change its owner or mode, or use another place.",
    ),
    (NotADirectoryError, IN_THE_WAY),
    (FileExistsError, IN_THE_WAY),
)


def message_of(error: BaseException) -> str:
    """The message of an error for a person.

    An error of the machine (a full disk, a missing package) is explained. The text of a library is
    cut to a few lines; the traceback in the log has all of it.
    """
    if isinstance(error, ValueError):  # it is ours, or of a value that the user has given
        return _shortened(error)
    for cause in _causes(error):
        if text := _of_disk(cause):
            return text
        if cause in (error, error.__cause__) and (text := _of_class(cause)):
            return text
    if _least_space()[0] < MIN_BYTES:  # a server or a database may hide why it has failed
        return f"The disk is full: {_make_room()}"
    return _shortened(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and the errors that led to it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _of_disk(error: BaseException) -> str | None:
    """What is told of a disk that cannot be written to."""

    def says(numbers: tuple[int, ...], texts: tuple[str, ...]) -> bool:
        text = str(error)
        return getattr(error, "errno", None) in numbers or any(part in text for part in texts)

    place = f" ({name})" if (name := _file_of(error)) else ""
    if says(*FULL):
        return f"The disk is full{place}: {_make_room()}"
    if says(*READ_ONLY):
        return f"This disk is read-only{place}, and the run has to write: use another one."
    return None


def _of_class(error: BaseException) -> str | None:
    """What is told of an error of one of the classes in `SENTENCES`."""
    name = _file_of(error)
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").split(".")[0]
    return next(
        (text.format(name=name) for kind, text in SENTENCES if name and isinstance(error, kind)),
        None,
    )


def _file_of(error: BaseException) -> str | None:
    """The file that an error is about; of a copy, the one that was written."""
    return getattr(error, "filename2", None) or getattr(error, "filename", None)


def _make_room() -> str:
    space, folder = _least_space()
    return f"make room in {folder} ({space / 1e6:.0f} MB are left there), or use another disk."


def _least_space() -> tuple[int, Path]:
    """The bytes that are left in the fullest of the folders that a run writes to, and that one."""
    from retrain.project import find_project

    folders = [Path(os.environ.get("TMPDIR", "/tmp")), Path.cwd()]
    try:
        project = find_project()
        folders += [project.store, project.state, project.root / "mlruns"]
    except (UsageError, OSError):
        pass
    return min((shutil.disk_usage(folder).free, folder) for folder in folders if folder.exists())


def _shortened(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UsageError):
        return text
    limit = MAX_LINES if isinstance(error, ValueError) else MAX_LIBRARY_LINES
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= MAX_WIDTH else f"{line[:MAX_WIDTH]} …" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"… ({len(lines) - limit} more lines)")
    return "\n".join(shown)
