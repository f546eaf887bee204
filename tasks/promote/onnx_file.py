"""Writes a saved model as an ONNX file, which needs neither PyTorch nor this project to run.

The file takes the images as they are stored, so that its mean and standard deviation need not be
known. ONNX comes with the optional dependencies `retrain[onnx]`.
"""

import json
import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import models
from models.image import to_arrays
from retrain.atomic import write_json
from retrain.errors import UsageError
from tasks.data.package import images_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "model.onnx"
NEEDED = ("onnx", "onnxruntime", "onnxscript")
LARGEST = 1_900_000_000  # bytes of weights in the file itself: protobuf ends at 2 GiB


def write(model: Path, folder: Path, min_confidence: float | None = None) -> None:
    """Writes the network with its normalisation and the softmax, and the names of its classes.

    Args:
        model: A folder that `models.save` wrote.
        folder: An empty folder.
        min_confidence: The least confidence of an answer that is accepted; None without one.

    Raises:
        UsageError: A library is missing.
        ValueError: The exporter of PyTorch cannot write this network.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise UsageError(
            f"--format onnx needs {' and '.join(missing)}: .venv/bin/pip install -e '.[onnx]'"
        )
    import torch

    from models.network import Probabilities

    loaded = models.load(model)
    images = loaded.images
    size, channels = images["size"], images["channels"]
    network = Probabilities(loaded.module).eval()
    # Two, because the exporter takes a batch of one for a constant.
    example = torch.zeros((2, size, size, channels), dtype=torch.uint8)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # else: torchvision is not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                network,
                (example,),
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("images")},),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"PyTorch cannot write this network as ONNX: {first}") from error
    assert program is not None
    if min_confidence is not None:
        program.model.metadata_props["min_confidence"] = f"{min_confidence:g}"
    is_large = (model / models.WEIGHTS).stat().st_size > LARGEST
    program.save(folder / FILE, external_data=is_large)
    write_json(folder / models.LABELS, list(loaded.labels))
    write_json(folder / models.IMAGES, images_of(model))


def answer(folder: Path, images: Sequence[bytes]) -> "NDArray[np.float32]":
    """Classifies encoded images with the file.

    Returns:
        float32 (images, classes).
    """
    import onnxruntime

    described = json.loads((folder / models.IMAGES).read_text(encoding="utf-8"))
    form = {name: described[name] for name in ("size", "channels", "resize")}
    session = onnxruntime.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])
    probabilities: NDArray[np.float32]
    [probabilities] = session.run(None, {"images": to_arrays(images, **form)})
    return probabilities
