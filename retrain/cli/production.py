"""The commands about a model in production: labels that come later, and what they say of it."""

from functools import partial
from pathlib import Path

from retrain.cli.command import LOOKING, Answer, Clone, Name, ToJson, app, place
from retrain.cli.flows import run_on_screen
from retrain.cli.labels import labels
from retrain.cli.predict import Asked


@labels.command
def add(workload: Name, file: str, /, *, project: Clone) -> Answer:
    """Add labels of images that the model has classified, in any order and however late.

    Example: `retrain labels add vit labels.csv`

    Args:
        file: CSV or Parquet, with the columns label, and sha256 or path (of the image, relative to
            the file).
    """
    from dataclasses import asdict

    from flows.production import add_labels

    added = add_labels(project, workload, Path(place(file)))

    def show() -> None:
        print(
            f"{added.images:,} images have labels in {file}: {added.new:,} new, "
            f"{added.changed:,} changed. What they say of the model: retrain production {workload}"
        )

    return Answer(asdict(added), show)


@app.command(group=LOOKING)
def production(
    workload: Name,
    /,
    *,
    answers: tuple[str, ...] = (),
    version: Asked = "champion",
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Tell how the model does in production, by labels that came later.

    Example: `retrain production vit`

    Args:
        answers: A folder to which a server logs its answers (repeatable).
    """
    from flows import predict, production as flow

    predict.find_named(project, f"{workload}@{version}")  # so that a mistake is refused at once
    folders = tuple(place(folder) for folder in answers)
    run = partial(flow.production, workload, folders, version)
    return run_on_screen(project, f"production-{workload}", run, flow.show, to_json)
