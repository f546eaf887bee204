"""Has the champion tell the embeddings of all images of the data, by which they are compared."""

from itertools import chain

import numpy as np

from retrain.runs import console
from retrain.step import Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Data, Workload
from tasks.compute.observed import embeddings_of, observe
from tasks.data.champion import Registered
from tasks.data.image_table import SPLITS, read_images
from tasks.data.raw_dataset import READERS, open_raw_dataset

EMBEDDINGS = "embeddings.npy"  # float32 (N, D)


@step(
    inputs=("registry", "pull", "validate"),
    reads=("data.image_column", "data.label_column"),
    libraries=("mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers"),
    has_stage=False,
)
def embed_with_champion(
    data: Data,
    registered: Registered,
    pulled: Artifact,
    validated: Artifact,
    workspace: Workspace,
) -> Facts:
    """Writes the embeddings of all accepted images.

    The images are those of the training split, then of val, then of test, each in the order of
    `image_table.read_split`.

    Returns:
        `rows`, how many images there are; `package`, the identity of the package that was asked.

    Raises:
        ValueError: The package does not load, refuses an image, or does not tell its embeddings.
    """
    rows = sum(validated.facts["rows"].values())
    source = open_raw_dataset(data, pulled)
    images = chain.from_iterable(read_images(source, validated.folder, split) for split in SPLITS)
    embeddings = []
    with console.counted("embeddings", rows) as show:
        for some, answers in observe(registered.package, images, workspace.scratch):
            for image, error in zip(some, answers["error"].to_pylist(), strict=True):
                if error is not None:
                    raise ValueError(f"{registered.version.title}: {image.path}: {error}")
            embeddings.append(embeddings_of(answers, registered.version.title))
            show(len(some))
    np.save(workspace.folder / EMBEDDINGS, np.concatenate(embeddings))
    return {"rows": rows, "package": registered.digest}


@embed_with_champion.chooses
def _dependencies(
    workload: Workload, registered: Registered, pulled: Artifact, validated: Artifact
) -> Chosen:
    # No import leads to `answer`: it runs as a program.
    return Chosen(modules=("tasks.compute.answer", READERS[pulled.facts["format"]]))
