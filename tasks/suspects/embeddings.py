"""Has the champion tell the embeddings of all images of the data, by which they are compared."""

import numpy as np
import pyarrow as pa

from retrain.runs import console
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from tasks.compute.scoring_client import as_matrix, classify
from tasks.data.champion import RegisteredVersion
from tasks.data.image_table import read_split
from tasks.data.raw_images import open_images, places_of

EMBEDDINGS = "embeddings.npy"  # float32 (N, D)


@step(
    inputs=("registry", "pull", "validate"),
    libraries=("mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers"),
)
def embed_with_champion(
    registered: RegisteredVersion,
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
    files, title = open_images(pulled), registered.version.title
    places, features = places_of(accepted), [True] * len(accepted)
    with console.counted("embeddings", len(accepted)) as show:
        answers = pa.concat_tables(
            classify(registered.package, files, places, workspace.scratch, show, features)
        )
    paths = [f"{title}: {path}" for path in accepted["path"].to_pylist()]
    np.save(workspace.folder / EMBEDDINGS, as_matrix(answers, "features", paths))
    return {"rows": len(accepted), "package": registered.version.package_digest}
