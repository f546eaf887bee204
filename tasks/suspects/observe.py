"""Has the champion look at all images of the data: their embeddings, by which they are compared."""

import numpy as np
import pyarrow as pa

from models.image import inspect
from retrain.runs import console
from retrain.step import Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.compute.observed import embeddings_of, observe as ask
from tasks.data.champion import Registered
from tasks.data.fingerprint import fingerprints, shrink
from tasks.data.image_table import read_images, read_split
from tasks.data.reading import open_images
from tasks.data.splits import SPLITS

EMBEDDINGS = "embeddings.npy"  # float32 (N, D)
PRINTS, THUMBNAILS = "prints.npy", "thumbnails.npy"  # as `tasks.data.fingerprint.fingerprints`


@step(
    inputs=("registry", "pull", "validate"),
    libraries=("mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers"),
    has_stage=False,
)
def observe(
    registered: Registered,
    pulled: Artifact,
    validated: Artifact,
    workspace: Workspace,
) -> Facts:
    """Writes the embeddings and the fingerprints of all accepted images.

    The images are those of the training split, then of val, then of test, each in the order of
    `image_table.read_split`.

    Returns:
        `rows`, how many images there are; `package`, the identity of the package that was asked.

    Raises:
        ValueError: The package does not load, refuses an image, or does not tell its embeddings.
    """
    rows = sum(validated.facts["rows"].values())
    listed = pa.concat_tables(read_split(validated.folder, split) for split in SPLITS)
    images = read_images(open_images(pulled), listed)
    answers = ask(registered.package, images, workspace.scratch)
    embeddings, prints, thumbnails = [], [], []
    with console.counted("observe", rows) as show:
        for some, batch in answers:
            for image, error in zip(some, batch["error"].to_pylist(), strict=True):
                if error is not None:
                    raise ValueError(f"{registered.version.title}: {image.path}: {error}")
            embeddings.append(embeddings_of(batch, registered.version.title))
            seen = fingerprints([shrink(inspect(image.data, reduced=True)[1]) for image in some])
            prints.append(seen[0])
            thumbnails.append(seen[1])
            show(len(some))
    for name, parts in ((EMBEDDINGS, embeddings), (PRINTS, prints), (THUMBNAILS, thumbnails)):
        np.save(workspace.folder / name, np.concatenate(parts))
    return {"rows": rows, "package": registered.digest}


@observe.chooses
def _dependencies(
    workload: Workload, registered: Registered, pulled: Artifact, validated: Artifact
) -> Chosen:
    # No import leads to `answer`: it runs as a program.
    return Chosen(modules=("tasks.compute.answer",))
