"""The commands that classify images, and those that show or write a model."""

from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter

from retrain.cli.command import (
    LOOKING,
    USING,
    Answer,
    Clone,
    Name,
    ToJson,
    Version,
    app,
    place,
)
from retrain.cli.flows import run_on_screen

Images = Annotated[
    str,
    Parameter(help="A folder of images at any depth, Parquet files, or a URL of either."),
]
Asked = Annotated[str, Parameter(help="The number or the alias of the version to ask.")]
ImageColumn = Annotated[
    str | None,
    Parameter(help="The Parquet column with the images; image or img, if it is not named."),
]


@app.command(group=USING)
def predict(
    workload: Name,
    /,
    *,
    input: Images,
    output: str,
    version: Asked = "champion",
    image_column: ImageColumn = None,
    force: bool = False,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Classify images with the model in production.

    Example: `retrain predict vit --input photos --output predictions.parquet`

    Args:
        output: The file to write: .parquet, .csv or .jsonl.
        force: Replace the output if it exists.
    """
    from flows import predict as flow

    source, file = place(input), place(output)
    # This comes first, so that a mistake is refused at once.
    flow.check(project, f"{workload}@{version}", source, file, force)
    run = partial(flow.predict, workload, source, file, version, image_column, force)
    return run_on_screen(project, f"predict-{workload}", run, flow.show, to_json)


@app.command(group=USING)
def drift(
    workload: Name,
    /,
    *,
    input: Images,
    reference: str | None = None,
    version: Asked = "champion",
    image_column: ImageColumn = None,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Tell how far images are from those the champion was tested on.

    Example: `retrain drift vit --input photos`

    Args:
        reference: Compare with these images, instead of the test split of the version.
    """
    from flows import drift as flow

    source, against = place(input), reference and place(reference)
    flow.check(project, f"{workload}@{version}", source, against)
    run = partial(flow.drift, workload, source, against, version, image_column)
    return run_on_screen(project, f"drift-{workload}", run, flow.show, to_json)


@app.command(group=USING)
def export(
    model: Version,
    /,
    *,
    to: str,
    format: Literal["huggingface", "onnx"] = "huggingface",
    project: Clone,
) -> Answer:
    """Write a model as transformers or ONNX Runtime load it.

    Example: `retrain export vit@champion --to exported`

    Args:
        to: A new folder.
        format: The form to write.
    """
    from flows.export import export

    result = export(project, model, place(to), format)
    return Answer(result, lambda: print(result.outcome))


@app.command(group=LOOKING)
def card(model: Version, /, *, project: Clone) -> Answer:
    """Show the card of a version: its data, results and limits.

    Example: `retrain card vit@champion`
    """
    from flows.predict import find_named
    from retrain.registry import model_card

    version = find_named(project, model)
    text = model_card.read(project, version)
    if text is None:
        raise ValueError(f"{version.title} has no card: the MLflow run of its training is gone.")
    return Answer({"card": text}, lambda: print(text, end=""))
