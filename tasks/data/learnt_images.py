"""The images that a registered version was trained or validated on.

`evaluate` writes them, as a file of uint64 in ascending order, each image once, numbered as
`tasks.data.predictions.image_id` does it; it is in the MLflow run of the training.
"""

from pathlib import Path

from retrain import atomic, tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion

# Older versions of this project wrote `learnt_images.npy`, with numbers of encoded bytes.
LEARNT = "learnt_pixels.npy"


def learnt_images(project: Project, version: ModelVersion) -> Path | None:
    """The file with the images that a version was trained or validated on; kept on this machine.

    Those of the versions that its training started from are among them. None if that was not
    recorded: it says nothing about what the version has learnt.
    """
    folder = project.state / "learnt_pixels"
    kept = folder / f"{version.run_id}.npy"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = tracking.read_artifact(project, version.run_id, f"evaluate/{LEARNT}")
        with atomic.replacing(kept) as partial:
            # Nothing was recorded by an older version of this project; an empty file says so.
            partial.write_bytes(content or b"")
    return kept if kept.stat().st_size else None
