"""The flow `drift`: compares what comes in with the test split of the model in production.

retrain drift vit --input photos
prefect deployment run drift/vit --param input=photos --watch

A sample of the images is classified. Above `drift.threshold` it emits the event `retrain.drift`, on
which an automation of Prefect can start `train/vit` (`prefect.yaml`).
"""

from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa

from flows import predict
from flows.pages import publish
from retrain.flow import flow
from retrain.project import Project, find_project
from retrain.registry.ledger import CHAMPION
from retrain.registry.versions import ModelVersion
from retrain.runs import console
from retrain.runs.liveness import Processes
from retrain.runs.records import Document, FlowRun
from tasks.data.champion import RegisteredVersion
from tasks.data.predictions import find_reference
from tasks.drift import TEST_SPLIT, report, sentence, show_features
from tasks.predict.predict import open_source, sample


@flow
def drift(
    workload: str,
    input: str,
    reference: str | None = None,
    version: str | int = CHAMPION,
    image_column: str | None = None,
) -> Document:
    """Compares images with the test split of the model in production.

    Args:
        workload: The name of a workload, or of what runs with `--as`.
        input: A folder, a file or a URL, as the flow `predict` takes it.
        reference: Images that the input is compared with, such as those of last
            month; None for the test split that the version was evaluated on.
        version: The number of a version, or an alias.
        image_column: The Parquet column with the images; `image` or `img` if None.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    project = find_project()
    model = check(project, f"{workload}@{version}", input, reference)
    with publish.flow_run(project, "drift", workload) as run:
        # This comes first, because these images may be missing.
        expected = _sample(run, model, reference, image_column)
        incoming = _sample(run, model, input, image_column)
        result = report(project, model, expected, incoming, input, reference or TEST_SPLIT, run.id)
        document = run.document(
            workload=workload,
            input=input,
            model=model.identity(),
            drift=result,
            state="Drifted" if result["drifted"] else None,
            outcome=sentence(result),
        )
        return publish.write(project, document)


def check(project: Project, model: str, input: str, reference: str | None) -> ModelVersion:
    """Checks the arguments of the flow, before it begins.

    Returns:
        The version that is to classify.

    Raises:
        UsageError: There is no such version, or there are no such images.
    """
    version = predict.find_model(project, model)
    for place in filter(None, (input, reference)):
        predict.check_input(project, place)
    return version


def show_result(document: Document) -> None:
    """Shows the features, the labels and the result."""
    show_features(document["drift"])
    console.say(f"{'took':<10} {document['took']:.1f} s")


def _sample(
    run: FlowRun, model: ModelVersion, place: str | None, image_column: str | None
) -> pa.Table:
    """A sample of the images of a place; without a place, what the version was evaluated on.

    Raises:
        ValueError: There are none, or none were kept.
    """
    if place is None:
        reference = find_reference(run.project, model)
        if reference is None:
            raise ValueError(
                f"Nothing was kept of what {model.title} was tested on, as it is at a promotion: "
                "name other images with --reference, such as the input of an earlier time."
            )
        return reference
    with predict.input_folder(run, place) as root:
        source = open_source(root, place, image_column)
        folder = Processes(run.project.store).temporary()
        images = sample(RegisteredVersion(run.project, model), source, Path(mkdtemp(dir=folder)))
    if not len(images):
        raise ValueError(f"None of the images of {place} can be classified.")
    return images
