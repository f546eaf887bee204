"""How good the model in production is on the challenger's test split, as it is served.

Its own package classifies the images, with its own code, image size and precision. It gets the
encoded images that a caller would send, and its predictions are counted like the challenger's.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from itertools import chain

from retrain.runs.runner import Runner
from retrain.step import Chosen, Facts, Step, Workspace
from retrain.store import Artifact
from retrain.workload import Data, Workload
from tasks.compute.served import Served, ask, other_versions
from tasks.data import image_table
from tasks.data.accepted_images import read_images
from tasks.data.champion import Champion, Registered
from tasks.data.json_file import write_json
from tasks.data.raw_dataset import READERS, open_raw_dataset
from tasks.evaluate import predictions
from tasks.evaluate.classes import compare_classes
from tasks.evaluate.metrics import Tally, summarise
from tasks.evaluate.predictions import Answers

logger = logging.getLogger(__name__)

SPLIT = "test"
LIBRARIES = (
    "mlflow", "numpy", "pandas", "pillow", "pyarrow", "simplejpeg", "torch", "transformers",
)  # fmt: skip


def score_champion(
    run: Runner, pulled: Artifact, validated: Artifact, scores: Artifact
) -> Champion:
    """Finds the champion and scores it on the challenger's test split.

    Args:
        run: Runs the step that scores it; the output is cached like any other.
        pulled: The data, as pulled.
        validated: Which images are used, and their splits.
        scores: The challenger's evaluation.

    Raises:
        RejectedDataError: The data lacks a class of the champion.
    """
    registered = compare_classes(run, validated)
    if registered is None:
        return Champion(None, None, None, {})
    champion = registered.version
    if champion.package_digest == scores.facts["package"]:
        metrics = scores.facts["metrics"]
    else:
        metrics = run(STEP, registered, pulled, validated).facts["metrics"]
    return Champion(champion.version, champion.package_digest, champion.train_digest, metrics)


def evaluate_champion(
    data: Data, registered: Registered, pulled: Artifact, validated: Artifact, workspace: Workspace
) -> Facts:
    """Predicts the test split with a registered version and measures the predictions.

    Writes `metrics.json` and `predictions.parquet`.

    Returns:
        `metrics`, by name; `package`, the identity of the package.

    Raises:
        ValueError: The version's files were changed, or it does not load or predict.
    """
    name = f"{registered.version.name} version {registered.version.version}"
    package = registered.package
    if others := other_versions(package):
        logger.warning("%s was registered with other libraries: %s.", name, ", ".join(others))
    classes = image_table.class_names(validated.folder)
    rows = sum(group.rows.get(SPLIT, 0) for group in image_table.row_groups(validated.folder))
    images = read_images(open_raw_dataset(data, pulled), validated.folder, SPLIT)
    try:
        with closing(ask(package, images, rows, workspace.scratch)) as served:
            first = next(served)
            tally = Tally(predictions.all_names(classes, first.known), len(classes))
            answers = _answers(chain([first], served))
            for _, counted in predictions.write(answers, first.known, classes, workspace.folder):
                tally.add(counted)
    except ValueError as error:
        raise ValueError(f"{name}, the champion, cannot be compared with: {error}") from error
    assert tally.rows == rows, (tally.rows, rows)
    metrics = summarise(tally)
    write_json(workspace.folder / "metrics.json", metrics)
    return {"metrics": metrics, "package": registered.digest}


def _answers(served: Iterator[Served]) -> Iterator[Answers]:
    """Replaces the predicted names by indices, and adds the rows."""
    import numpy as np
    import pyarrow as pa

    for batch in served:
        place = {name: index for index, name in enumerate(batch.known)}
        columns = {
            name: [getattr(image, name) for image in batch.images]
            for name in ("path", "sha256", "label")
        }
        best = np.array([place[label] for label in batch.labels], np.int64)
        yield Answers(pa.RecordBatch.from_pydict(columns), best, batch.probabilities)


def _chosen(
    workload: Workload, registered: Registered, pulled: Artifact, validated: Artifact
) -> Chosen:
    # No import leads to `answer`: it runs as a program.
    return Chosen(modules=("tasks.compute.answer", READERS[pulled.facts["format"]]))


STEP = Step(
    "evaluate_champion",
    evaluate_champion,
    reads=("data.image_column", "data.label_column"),
    inputs=("registry", "pull", "validate"),
    # The champion runs with those installed here, whatever it was registered with.
    libraries=LIBRARIES,
    chosen=_chosen,
)
