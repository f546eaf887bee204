"""Writes the package of a model, which MLflow serves."""

import io
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import version as installed
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain.code import libraries_of, source_of
from retrain.disk import write_json
from tasks.data import package


def write_package(
    model: Path,
    precision: str,
    images: Mapping[str, int],
    folder: Path,
    min_confidence: float | None = None,
) -> None:
    """Writes a model as MLflow serves it: weights, code, signature, an example, requirements.

    Args:
        model: A folder that `models.save` wrote.
        precision: The precision of the evaluation and of the answers: `fp32` or `bf16`.
        images: The number of images of each class, for information.
        folder: Must not exist yet; the folder above it takes temporary files.
        min_confidence: The least confidence of an answer that it accepts; None if it does not say.
    """
    import mlflow
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import Map

    # MLflow checks a request against the signature, and what it then says repeats the request. So
    # the column is a string, of which MLflow demands nothing (bytes pass too), and may be missing:
    # `models/serving.py` decodes the base64 itself, in `instances` and `inputs` too, and says what
    # is wrong.
    inputs = [ColSpec(DataType.string, "image", required=False)]
    outputs = [ColSpec(DataType.string, "label"), ColSpec(Map(DataType.double), "probabilities")]
    if min_confidence is not None:
        outputs.append(ColSpec(DataType.boolean, "accepted"))
    with TemporaryDirectory(dir=folder.parent) as place:
        code, serving, classes = (
            Path(place) / Path(name).name
            for name in (package.CODE, package.SERVING, package.CLASSES)
        )
        modules = package.code_of(model)
        _copy_code(modules, code)
        write_json(serving, package.serving_of(model, precision, min_confidence))
        write_json(classes, dict(images))
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(code / "models" / "serving.py"),
            artifacts={"model": str(model), "serving": str(serving), "classes": str(classes)},
            code_paths=sorted(map(str, code.iterdir())),
            signature=ModelSignature(inputs=Schema(inputs), outputs=Schema(outputs)),
            input_example=pd.DataFrame({"image": [_example()]}),
            # Without them, MLflow would load the model to find what it imports. The package index
            # has no versions with a local part (`+cpu`).
            pip_requirements=[
                f"{name}=={installed(name).partition('+')[0]}" for name in libraries_of(modules)
            ],
        )


def _copy_code(modules: Iterable[str], folder: Path) -> None:
    """Copies modules; serving needs no others."""
    for name in modules:
        source = source_of(name)
        assert source is not None, name
        place = Path(folder, *name.split("."))
        copy = place / source.name if source.name == "__init__.py" else place.with_suffix(".py")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def _example() -> bytes:
    """An example of an image (PNG): who may see the model may not be allowed to see the data."""
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("L", (8, 8)).save(encoded, "PNG")
    return encoded.getvalue()
