"""Writes a saved model as a folder that the Auto classes of `transformers` load.

Neither this project nor `trust_remote_code` is needed to load it.
"""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from models import pretrained
from models.image import RESAMPLING
from retrain.atomic import write_json
from tasks.data.package import images_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROCESSOR = "preprocessor_config.json"


def write(model: Path, folder: Path, min_confidence: float | None = None) -> None:
    """Writes the configuration, the weights in fp32, and the settings of the image processor.

    Args:
        model: A folder that `models.save` wrote.
        folder: An empty folder.
        min_confidence: The least confidence of an answer that is accepted; None without one.

    Raises:
        ValueError: The network is none of `transformers`.
    """
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    loaded = models.load(model)
    network: Any = loaded.module.classifier
    config: Any = getattr(network, "config", None)
    supported = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING.get(type(config), ())
    if type(network) not in (supported if isinstance(supported, tuple) else (supported,)):
        family = json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"]
        raise ValueError(
            f"A network of the family {family} is no image classifier of transformers, which "
            "AutoModelForImageClassification could load: use --format onnx."
        )
    config.id2label = dict(enumerate(loaded.labels))
    config.calibration_temperature = loaded.module.temperature
    if min_confidence is not None:
        config.min_confidence = min_confidence
    config.label2id = {label: index for index, label in enumerate(loaded.labels)}
    pretrained.quiet()
    network.save_pretrained(folder)
    write_json(folder / PROCESSOR, processor(images_of(model)))


def processor(images: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an image processor that makes the pixels that a model takes.

    `crop` is the processor of Perceiver, the only one that cuts the middle square out before it
    scales. Of an image that is no square, its pixels differ by less than 1 of 255 on average: it
    does not see beyond the cut, and Pillow may scale the cut image in the other direction first.

    Args:
        images: The form of the images, as `images_of` gives it.
    """
    from PIL import Image

    side = {"height": images["size"], "width": images["size"]}
    crops = images["resize"] == "crop"
    settings = {
        "image_processor_type": "PerceiverImageProcessor" if crops else "ViTImageProcessor",
        "do_resize": True,
        "size": side,
        "resample": int(Image.Resampling[RESAMPLING.upper()]),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": images["mean"],
        "image_std": images["std"],
    }
    if crops:
        settings |= {"do_center_crop": True, "crop_size": side}
    # Transparency is laid on white, as here. There is no such setting for grey images.
    return settings | ({"do_convert_rgb": True} if images["channels"] == 3 else {})


def answer(folder: Path, images: Sequence[bytes]) -> "NDArray[np.float32]":
    """Classifies encoded images with the folder, as its README shows it.

    Returns:
        float32 (images, classes).
    """
    import torch
    from PIL import Image, ImageOps
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    pretrained.quiet()
    prepare = AutoImageProcessor.from_pretrained(folder, backend="pil")
    network = AutoModelForImageClassification.from_pretrained(folder)
    grey = len(prepare.image_mean) == 1
    answers = []
    for data in images:
        opened = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        inputs = prepare(opened.convert("L") if grey else opened, return_tensors="pt")
        with torch.inference_mode():
            logits = network(**inputs).logits / network.config.calibration_temperature
            answers.append(logits.softmax(-1)[0])
    probabilities: NDArray[np.float32] = torch.stack(answers).numpy()
    return probabilities
