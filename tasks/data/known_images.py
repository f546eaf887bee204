"""The images that a registered version has learnt, and those that it was tested on.

`evaluate` writes both, as files of uint64 in ascending order, each image once, numbered as
`tasks.data.predictions.image_id` does it; they are in the MLflow run of the training.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from retrain import tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion

# Older versions of this project wrote `learnt_images.npy`, with numbers of encoded bytes.
LEARNT = "learnt_pixels.npy"
TEST = "test_images.npy"


def learnt_images(project: Project, version: ModelVersion) -> Path | None:
    """The file with the images that a version was trained or validated on.

    Those of the versions that its training started from are among them. None if that was not
    recorded: it says nothing about what the version has learnt.
    """
    return _kept(project, version, LEARNT)


def test_images(project: Project, version: ModelVersion) -> Path | None:
    """The file with the images that a version was tested on; None if that was not recorded."""
    return _kept(project, version, TEST)


def _kept(project: Project, version: ModelVersion, name: str) -> Path | None:
    """A file of the run of a version's training, which is kept on this machine."""
    folder = project.state / "known_images"
    kept = folder / f"{version.run_id}-{name}"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as partial:
            found = tracking.download_artifact(
                project, version.run_id, f"evaluate/{name}", Path(partial)
            )
            if found is None:  # of an older version of this project; an empty file says so
                found = Path(partial, "none")
                found.touch()
            found.replace(kept)
    return kept if kept.stat().st_size else None
