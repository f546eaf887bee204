"""The commands that use a model: `predict`, `drift`, `export`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from retrain.cli.command import (
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
from retrain.errors import UsageError

Images = Annotated[
    str,
    Parameter(help="A folder of images at any depth, Parquet files, or a URL of either."),
]
Selector = Annotated[str, Parameter(help="The number or the alias of the version to ask.")]
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
    version: Selector = "champion",
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
    return run_on_screen(project, f"predict-{workload}", run, flow.show_result, to_json)


@app.command(group=USING)
def drift(
    workload: Name,
    /,
    *,
    input: Annotated[Images | None, Parameter(show_default=False)] = None,
    reference: str | None = None,
    labels: tuple[str, ...] = (),
    answers: tuple[str, ...] = (),
    version: Selector = "champion",
    image_column: ImageColumn = None,
    project: Clone,
    to_json: ToJson,
) -> Answer:
    """Tell whether the model is still right, by images or by later labels.

    With `--input`, how far images are from those that the model was tested on. Without, how many of
    its answers were right, week by week, by the labels that are known of them by now.

    Examples: `retrain drift vit --input photos`, `retrain drift vit --labels labels.csv`

    Args:
        reference: With --input: compare with these images, instead of the test split of the
            version.
        labels: Add the labels of this file, in any order and however late: CSV or Parquet, with the
            columns label, and sha256 or path (of the image, relative to the file; repeatable).
        answers: Count the answers in this folder, to which a server logs them (repeatable).
    """
    from flows import drift as by_images, predict, production as by_labels

    if (labels or answers) if input else (reference or image_column):
        raise UsageError(
            "--reference and --image-column go with --input; --labels and --answers without."
        )
    if input:
        source, against = place(input), reference and place(reference)
        by_images.check(project, f"{workload}@{version}", source, against)
        run = partial(by_images.drift, workload, source, against, version, image_column)
        show = by_images.show_result
    else:
        predict.find_model(project, f"{workload}@{version}")  # a mistake is refused at once
        folders = tuple(map(place, answers))
        for file in labels:
            said = by_labels.keep_labels(
                project, workload, Path(place(file)), [*map(Path, folders)]
            )
            print(f"{file}: {said}", file=sys.stderr)
        run = partial(by_labels.production, workload, folders, version)
        show = by_labels.show_result
    return run_on_screen(project, f"drift-{workload}", run, show, to_json)


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
