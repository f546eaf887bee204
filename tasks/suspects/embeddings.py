"""Has the champion tell the embeddings of all images of the data, by which they are compared."""

import numpy as np

from retrain.runs import console
from retrain.step import Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Workload
from tasks.compute.observed import embeddings_of, observe
from tasks.data.champion import Registered
from tasks.data.image_table import read_images, read_split
from tasks.data.reading import open_images

EMBEDDINGS = "embeddings.npy"  # float32 (N, D)


@step(
    inputs=("registry", "pull", "validate"),
    libraries=("mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers"),
    has_stage=False,
)
def embed_with_champion(
    registered: Registered,
    pulled: Artifact,
    validated: Artifact,
    workspace: Workspace,
) -> Facts:
    """Writes the embeddings of all accepted images, in the order of the table of these.

    Returns:
        `rows`, how many images there are; `package`, the identity of the package that was asked.

    Raises:
        ValueError: The package does not load, refuses an image, or does not tell its embeddings.
    """
    accepted = read_split(validated.folder)
    images = read_images(open_images(pulled), accepted)
    embeddings = []
    with console.counted("embeddings", len(accepted)) as show:
        for some, answers in observe(registered.package, images, workspace.scratch):
            for image, error in zip(some, answers["error"].to_pylist(), strict=True):
                if error is not None:
                    raise ValueError(f"{registered.version.title}: {image.path}: {error}")
            embeddings.append(embeddings_of(answers, registered.version.title))
            show(len(some))
    np.save(workspace.folder / EMBEDDINGS, np.concatenate(embeddings))
    return {"rows": len(accepted), "package": registered.digest}


@embed_with_champion.chooses
def _dependencies(
    workload: Workload, registered: Registered, pulled: Artifact, validated: Artifact
) -> Chosen:
    # No import leads to `answer`: it runs as a program.
    return Chosen(modules=("tasks.compute.answer",))
