"""Writes a saved model as an ONNX file, which needs neither PyTorch nor this project to run.

The file takes the images as they are stored, so that its mean and standard deviation need not be
known. ONNX comes with the optional dependencies `retrain[onnx]`.
"""

import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from models.image import to_arrays
from retrain.atomic import write_json
from retrain.errors import UsageError
from tasks.data.package import images_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "model.onnx"
METADATA = f"the metadata of `{FILE}`"  # where the threshold is
NEEDED = ("onnx", "onnxscript")
LARGEST = 1_900_000_000  # bytes of weights in the file itself: protobuf ends at 2 GiB


def check() -> None:
    """Refuses to begin without the libraries.

    Raises:
        UsageError: One is missing.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"--format onnx needs {' and '.join(missing)}: .venv/bin/pip install -e '.[onnx]'"
        )


def write(model: Path, folder: Path, min_confidence: float | None = None) -> None:
    """Writes the network with its normalisation and the softmax, and the names of its classes.

    Args:
        model: A folder that `models.save` wrote.
        folder: An empty folder.
        min_confidence: The least confidence of an answer that is accepted; None without one.

    Raises:
        ValueError: The exporter of PyTorch cannot write this network.
    """
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
            torch.onnx.export(
                network,
                (example,),
                folder / FILE,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("images")},),
                external_data=(model / models.WEIGHTS).stat().st_size > LARGEST,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"PyTorch cannot write this network as ONNX: {first}") from error
    if min_confidence is not None:
        _describe(folder / FILE, {"min_confidence": f"{min_confidence:g}"})
    write_json(folder / models.LABELS, list(loaded.labels))
    write_json(folder / models.IMAGES, images_of(model))


def _describe(file: Path, values: dict[str, str]) -> None:
    """Adds metadata to an ONNX file."""
    import onnx

    described = onnx.load(file, load_external_data=False)
    onnx.helper.set_model_props(described, values)
    onnx.save(described, file)


def answer(folder: Path, images: Sequence[bytes]) -> "NDArray[np.float32] | None":
    """Classifies encoded images with the file; None if onnxruntime is not installed.

    Returns:
        float32 (images, classes).
    """
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    described = json.loads((folder / models.IMAGES).read_text(encoding="utf-8"))
    form = {name: described[name] for name in ("size", "channels", "resize")}
    session = onnxruntime.InferenceSession(folder / FILE, providers=["CPUExecutionProvider"])
    probabilities: NDArray[np.float32]
    [probabilities] = session.run(None, {"images": to_arrays(images, **form)})
    return probabilities


def usage(images: Mapping[str, Any]) -> str:
    """How the file is used (Markdown); `images` as `images_of` gives it."""
    size, channels = images["size"], images["channels"]
    mode = "L" if channels == 1 else "RGB"
    cut, box = "", ""
    if images["resize"] == "crop":
        box = ", box=(left, top, left + side, top + side)"
        cut = (
            "side = min(image.size)\n"
            "left, top = (image.width - side) // 2, (image.height - side) // 2\n"
        )
    return f"""\
`{FILE}` takes `images`, uint8 (N, {size}, {size}, {channels}), normalises their pixels, and gives
`probabilities`, float32 (N, classes), in the order of `{models.LABELS}`.

```python
import json
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("{FILE}")
image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("{mode}")
{cut}image = image.resize(({size}, {size}), Image.Resampling.{images["resampling"].upper()}{box})
pixels = np.asarray(image).reshape(1, {size}, {size}, {channels})
[probabilities] = session.run(None, {{"images": pixels}})
print(json.load(open("{models.LABELS}"))[int(probabilities[0].argmax())])
```"""
