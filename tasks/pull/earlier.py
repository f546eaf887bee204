"""Reads what an earlier output of `pull` has, so that the same files are not brought again."""

from pathlib import Path

from retrain.outputs import read_digests


def read_known(earlier: Path | None) -> dict[str, tuple[str, str]]:
    """The SHA-256 (hex) of each file of the data, and where it is, by its name; none without one.

    A link to such a file is as good as a copy: nobody writes to it, and it has just been checked.
    """
    if earlier is None:
        return {}
    return {
        path.removeprefix("data/"): (digest, f"{earlier}/{path}")
        for path, digest in read_digests(earlier).items()
    }
