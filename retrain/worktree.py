"""Checks a commit out in a git worktree beside the clone, and removes it afterwards."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retrain.locks import locked
from retrain.project import Project

# Hooks of the clone, such as those of pre-commit or DVC, are not for a copy.
ADD = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--detach")


@contextmanager
def checked_out(project: Project, commit: str) -> Iterator[Project]:
    """Checks a commit out into a folder that is removed after the block.

    One process does so at a time, and removes what a killed one has left.

    Args:
        project: The clone.
        commit: A commit of the clone's repository.

    Raises:
        ValueError: There is no such commit here.
    """
    folder = project.state / "worktrees"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock")):
        _clear(project, folder)
        try:
            project.git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
        except ValueError:
            raise ValueError(
                f"Commit {commit} is not in this clone. Fetch it first: git fetch --all"
            ) from None
        try:
            place = folder / secrets.token_hex(4)
            project.git(*ADD, str(place), commit)
            yield Project(place / project.git("rev-parse", "--show-prefix"))
        finally:
            _clear(project, folder)


def _clear(project: Project, folder: Path) -> None:
    for place in folder.iterdir():
        with suppress(ValueError):  # git does not know it: `worktree add` was killed
            project.git("worktree", "remove", "--force", str(place))
        shutil.rmtree(place, ignore_errors=True)
