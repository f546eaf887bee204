"""Finds what a setting names as `package.module:name`: the user's code in the project's folder."""

import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
FACTORY = "model.factory"  # the setting that names what makes a network
# `package.module:name`
PATTERN = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"


def module_of(named: str) -> str:
    """The dotted name of the module in `package.module:name`."""
    return named.partition(":")[0]


def find(named: str, key: str, root: Path | None = None) -> Any:
    """Imports what a setting names.

    Args:
        named: The value of the setting, such as `examples.port.ported:build`.
        key: The name of the setting, for messages.
        root: The project's folder, from which modules are imported too; none if None, in the
            package of a model, which has a copy of them.

    Raises:
        ValueError: The module cannot be imported, or has nothing of this name that can be called.
    """
    if root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module, _, name = named.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        raise ValueError(f"{key}: {module} cannot be imported: {describe_error(error)}.") from error
    if not callable(function):
        raise ValueError(f"{key}: {module} has no function {name}.")
    return function


def describe_error(error: BaseException) -> str:
    """An error in one line: its class, its message, and the place in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    # Below it, there may be frames of libraries.
    user_frames = [frame for frame in frames if not frame.filename.startswith(("<", *LIBRARIES))]
    message = (str(error).splitlines() or [""])[0]
    said = f"{type(error).__name__}: {message}" if message else type(error).__name__
    for frame in (user_frames or frames)[-1:]:
        said += f" ({Path(frame.filename).name}, line {frame.lineno})"
    return said
