"""Reads the history of `data.dvc`: which commits gave the data a new version, and when."""

from collections.abc import Iterator
from datetime import UTC, datetime

from retrain.errors import UsageError
from retrain.project import Project


def committed_versions(
    project: Project, revision: str | None = None
) -> Iterator[tuple[str, datetime]]:
    """The commits that changed `data.dvc`, and when they were made; the newest first.

    Of a branch that was merged, the merge counts: then the data came.

    Args:
        project: The clone.
        revision: The newest commit that counts; the one that is checked out if None.

    Raises:
        UsageError: This is no git repository, or a shallow one, which lacks the first commits.
    """
    asked = ("--first-parent", "--format=%H %ct", revision or "HEAD")
    try:
        is_shallow = project.git("rev-parse", "--is-shallow-repository") == "true"
        commits = project.git("log", *asked, "--", "data.dvc").splitlines()
    except (ValueError, FileNotFoundError) as error:
        raise UsageError(f"The history of data.dvc cannot be read: {error}") from None
    if is_shallow:
        raise UsageError(
            "The history of data.dvc is not here, because this clone is shallow. Fetch it: git "
            "fetch --unshallow (in CI, check out with fetch-depth: 0)."
        )
    for line in commits:
        commit, seconds = line.split()
        yield commit, datetime.fromtimestamp(int(seconds), UTC)
