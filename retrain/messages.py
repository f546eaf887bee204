"""What people are told of an error: its message, and whether a disk is full."""

import os
import shutil
import traceback
from contextlib import suppress
from pathlib import Path

from retrain.errors import UsageError
from retrain.project import find_project
from retrain.runs.console import FULL

MAX_LINES = 16
MAX_LIBRARY_LINES = 3  # of an error that is not about what the user has given
MAX_WIDTH = 400
MIN_BYTES = 1_000_000  # with less, a database cannot be written


def lacks_space(error: BaseException) -> bool:
    """Whether a disk is full, which a library, a database or a server may hide."""
    causes = "".join(traceback.format_exception(error))
    return any(os.strerror(code) in causes for code in FULL) or least_space()[0] < MIN_BYTES


def message_of(error: BaseException) -> str:
    """The message of an error for a person.

    A full disk is named, whatever the error says of it. The text of a library is
    cut to a few lines; the traceback in the log has all of it.
    """
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UsageError):
        return text
    # A `ValueError` is the project's own, or about a value that the user gave.
    is_own = isinstance(error, ValueError)
    if not is_own and lacks_space(error):
        space, folder = least_space()
        remaining = f"{space / 1e6:.0f} MB are left there"
        return f"The disk is full: make room in {folder} ({remaining}), or use another disk."
    limit = MAX_LINES if is_own else MAX_LIBRARY_LINES
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= MAX_WIDTH else f"{line[:MAX_WIDTH]} …" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"… ({len(lines) - limit} more lines)")
    return "\n".join(shown)


def least_space() -> tuple[int, Path]:
    """The free bytes of the fullest of the folders that a run writes to, and that folder."""
    temporary = os.environ.get("TMPDIR", "/tmp")
    folders = [Path(temporary), Path(os.environ.get("RAY_TMPDIR", temporary)), Path.cwd()]
    folders.append(Path("/dev/shm"))  # where Python keeps the locks of its processes
    with suppress(UsageError, OSError):
        project = find_project()
        folders += [project.store, project.state, project.root / "mlruns"]
    return min((shutil.disk_usage(folder).free, folder) for folder in folders if folder.exists())
