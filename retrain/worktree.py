"""A commit that is checked out beside the clone for a while, in a worktree of git."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from retrain.locks import locked
from retrain.project import Project

# Hooks of the clone, such as those of pre-commit or DVC, are not for a copy.
ADD = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach")


@contextmanager
def checked_out(project: Project, commit: str) -> Iterator[Project]:
    """Checks a commit out into a folder that is removed after the block.

    What a process that was killed has left is removed by the next call.

    Args:
        project: The clone.
        commit: Of its repository.

    Raises:
        ValueError: There is no such commit here; or another process has a commit checked out.
    """
    from filelock import Timeout

    folder = project.state / "worktrees"
    folder.mkdir(parents=True, exist_ok=True)
    held = ExitStack()
    try:
        held.enter_context(locked(folder.with_suffix(".lock"), wait=False))
    except Timeout:
        raise ValueError("A version is being reproduced in this clone: wait for its end.") from None
    with held:
        held.callback(_clear, project, folder)
        _clear(project, folder)
        try:
            project.git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        except ValueError:
            raise ValueError(
                f"Commit {commit} is not in this clone. Fetch it first: git fetch --all"
            ) from None
        place = folder / secrets.token_hex(4)
        project.git(*ADD, str(place), commit)
        yield Project(place / project.git("rev-parse", "--show-prefix"))


def _clear(project: Project, folder: Path) -> None:
    for place in folder.iterdir():
        with suppress(ValueError):  # git does not know it: `worktree add` was killed
            project.git("worktree", "remove", "--force", str(place))
        shutil.rmtree(place, ignore_errors=True)
