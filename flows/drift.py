"""The flow `drift`: compares what comes in with the test split of the model in production.

retrain drift vit --input photos
prefect deployment run drift/vit --param input=photos --watch

A sample of the images is classified. Above `drift.threshold` it emits the event `retrain.drift`, on
which an automation of Prefect can start `train/vit` (`prefect.yaml`).
"""

from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from flows import predict
from retrain import preflight
from retrain.params import load_drift
from retrain.project import Project, find_project
from retrain.registry.versions import CHAMPION, ModelVersion
from retrain.runs import console, lost
from retrain.runs.notify import notify_now
from retrain.runs.pipeline import flow_without_steps
from retrain.runs.records import Document
from retrain.store import Store
from tasks.data.champion import Registered
from tasks.data.reference import find_reference
from tasks.drift import report
from tasks.predict.predict import sample

if TYPE_CHECKING:
    import pyarrow as pa
    from prefect import Flow

NAME = "drift"
HELP = "Compares images with the test split of the model in production."


def run(
    workload: str,
    input: str,
    reference: str | None = None,
    version: str | int = CHAMPION,
    image_column: str | None = None,
) -> Document:
    """Compares a sample of images with a reference, inside a Prefect flow run.

    Args:
        workload: The name of a workload, or of what runs with `--as`.
        input: As for the flow `predict`.
        reference: What it is compared with, such as the input of last month; the test split that
            the version was evaluated on if None.
        version: The number of a version, or an alias.
        image_column: The Parquet column with the images; `image` or `img` if None.

    Returns:
        The run's document, as `--json` prints it.

    Raises:
        ValueError: The user has to correct something.
    """
    from prefect import runtime

    began = monotonic()
    project = find_project()
    model = predict.find_model(project, workload, str(version))
    for place in filter(None, (input, reference)):
        predict.check_input(project, place)
    threshold = load_drift(project.params, workload).threshold
    lost.end_lost_runs(project)
    preflight.check_surroundings(project)
    store, run_id = Store(project.store), str(runtime.flow_run.id)

    def sampled(place: str) -> "pa.Table":
        with predict.opened(project, store, run_id, place, image_column) as source:
            found = sample(Registered(project, model), source, store)
        if not len(found):
            raise ValueError(f"None of the images of {place} can be classified.")
        return found

    with store.holding(run_id):
        # First what may not be there.
        against = sampled(reference) if reference else _test_split(project, model)
        incoming = sampled(input)
    result = report.report(
        project,
        model,
        against,
        incoming,
        place=input,
        against=reference or report.TEST_SPLIT,
        threshold=threshold,
        run=run_id,
    )
    report.publish(workload, result)
    if result["drifted"]:
        notify_now("drift", report.sentence(result))
    return {
        "flow": NAME,
        "workload": workload,
        "run": run_id,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(monotonic() - began, 3),
        "input": input,
        "model": model.identity(),
        "drift": result,
        "outcome": report.sentence(result),
    }


def show(document: Document) -> None:
    """Shows the features, the labels and the result."""
    report.show(document["drift"])
    console.say(f"{'took':<10} {document['took']:.1f} s")


def _test_split(project: Project, model: ModelVersion) -> "pa.Table":
    """The version's reference.

    Raises:
        ValueError: It cannot be made any more.
    """
    found = find_reference(project, model)
    if found is None:
        raise ValueError(
            f"The store has lost what {model.name} version {model.version} was evaluated on: name "
            "other images with --reference, such as the input of an earlier time."
        )
    return found


def as_prefect_flow() -> "Flow[..., Document]":
    """The flow that Prefect runs, with the parameters of `run`."""
    return flow_without_steps(run, NAME, HELP)


def __getattr__(name: str) -> Any:
    """Gives Prefect its flow when it is asked for: importing Prefect takes a second."""
    if name != NAME:
        raise AttributeError(name)
    return as_prefect_flow()
