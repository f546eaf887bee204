"""Writes a registered version in a form that others can load without this project.

`huggingface` is a folder that the Auto classes of `transformers` load, without
`trust_remote_code`. `onnx` is a file that needs no PyTorch either; it takes the images as they are
stored, so that its mean and standard deviation need not be known, and comes with the optional
dependencies `retrain[onnx]`.
"""

import io
import json
import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import models
from models import pretrained
from models.image import RESAMPLING, to_array
from retrain.errors import UsageError
from retrain.file_io import sha256_of, write_json
from retrain.project import Project
from retrain.registry import packages
from retrain.registry.versions import ModelVersion
from tasks.data import package
from tasks.promote.outcome import render
from tasks.promote.package import TOLERANCE, check_files, differences, example_for

README = "README.md"
PROCESSOR = "preprocessor_config.json"
ONNX = "model.onnx"
NEEDED = ("onnx", "onnxruntime", "onnxscript")
# An ONNX file takes the same pixels, so that its probabilities are those of the package, but for
# rounding. Other libraries decode and scale images otherwise: a probability differed by 0.03 at
# most. So this is the largest difference, and the share of the images that has to keep to it.
RESIZED = (0.1, 0.95)


@dataclass(frozen=True)
class Exported:
    """An export that was written, and how its answers compare with those of the package.

    Attributes:
        name: The name of the model.
        version: The number of its version.
        format: One of `FORMATS`.
        folder: The folder that was written.
        compared: The number of test images on which its answers were compared.
        same: The number of these images that got the same label.
        difference: The largest difference of a probability.
    """

    name: str
    version: int
    format: str
    folder: str
    compared: int
    same: int
    difference: float

    @property
    def outcome(self) -> str:
        """Where the export is, and how its answers compare, in two sentences."""
        location = f"{self.name} version {self.version} is in {self.folder}."
        return f"{location} {self.comparison}"

    @property
    def comparison(self) -> str:
        """How its answers compare with those of the package, in one sentence."""
        return (
            f"Of {self.compared:,} test images it gives {self.same:,} the label that the package "
            f"gives; their probabilities differ by {self.difference:.1g} at most."
        )


def export(project: Project, version: ModelVersion, folder: Path, form: str) -> Exported:
    """Writes a version, and compares its answers with what the package answered for some images.

    Args:
        project: The clone that the registry belongs to.
        version: The version of the model.
        folder: The folder to write; it appears at the end, as a whole.
        form: One of `FORMATS`.

    Raises:
        UsageError: The folder is not empty, or a library is missing.
        ValueError: The package has changed or has no such form; or what was written gives other
            answers. Then nothing is left of it.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"--to {folder} is there already: name a new or empty folder.")
    write, answer = FORMATS[form]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".export-") as place:
        scratch, target = Path(place), Path(place, "export")
        target.mkdir()
        (scratch / "package").mkdir()
        fetched = packages.fetch(project, version, scratch / "package")
        example = example_for(project, version)
        check_files(fetched, version, example)
        model = fetched / package.MODEL
        # A network of a user's is made by the module of its package: here it may be another by now.
        sys.path.insert(0, str(fetched / package.CODE))
        try:
            write(model, target)
        finally:
            sys.path.remove(str(fetched / package.CODE))
        serving = json.loads((fetched / package.SERVING).read_text(encoding="utf-8"))
        answers = answer(target, example["image"].to_pylist())
        tolerance = (TOLERANCE[serving["precision"]], 1.0) if form == "onnx" else RESIZED
        exported = _compared(version, form, folder, example, answers, *tolerance)
        images, comparison = package.images_of(model), exported.comparison
        text = readme(project, version, form, images, serving["precision"], comparison)
        (target / README).write_text(text, encoding="utf-8")
        target.replace(folder)
    return exported


def _compared(
    version: ModelVersion,
    form: str,
    folder: Path,
    example: pa.Table,
    answers: NDArray[np.float32],
    tolerance: float,
    share: float,
) -> Exported:
    """Compares the answers for the images that are kept with the version's run.

    Raises:
        ValueError: Too many answers differ.
    """
    apart, agree = differences(example, answers, tolerance)
    expected = np.array(example["probabilities"].to_pylist())
    same = answers.argmax(axis=1) == expected.argmax(axis=1)
    exported = Exported(
        name=version.name,
        version=version.version,
        format=form,
        folder=str(folder),
        compared=len(example),
        same=int(same.sum()),
        difference=float(apart.max()),
    )
    if agree.mean() < share:
        raise ValueError(
            f"{version.title} is not exported: what was written gives other answers. "
            f"{exported.comparison} For {agree.sum():,} they differ by {tolerance:g} at most, "
            f"which {share:.0%} of the images have to."
        )
    return exported


def readme(
    project: Project,
    version: ModelVersion,
    form: str,
    images: Mapping[str, Any],
    precision: str,
    comparison: str,
) -> str:
    """The text of the README in the folder (Markdown).

    Args:
        project: The clone with the card of the version.
        version: The version of the model.
        form: One of `FORMATS`.
        images: What images the model takes, as `images_of` gives it.
        precision: In which the package answers.
        comparison: The sentence about the answers.
    """
    return render(
        "readme",
        version=version,
        form=form,
        card=packages.read_card(project, version),
        images=images,
        precision=precision,
        comparison=comparison,
    )


def write_huggingface(model: Path, folder: Path) -> None:
    """Writes the configuration, the weights in fp32, and the settings of the image processor.

    Args:
        model: A folder that `models.save` wrote.
        folder: An empty folder.

    Raises:
        ValueError: The network is none of `transformers`.
    """
    from PIL import Image
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
    # By which a training with this as `model.pretrained` knows which images it has learnt.
    config.retrain_weights = sha256_of(model / models.WEIGHTS)
    config.label2id = {label: index for index, label in enumerate(loaded.labels)}
    pretrained.quiet()
    network.save_pretrained(folder)
    images = package.images_of(model)
    side = {"height": images["size"], "width": images["size"]}
    # `crop` is the processor of Perceiver, the only one that cuts the middle square out before it
    # scales. Of an image that is no square, its pixels differ by less than 1 of 255 on average: it
    # does not see beyond the cut, and Pillow may scale the cut image in the other direction first.
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
    if images["channels"] == 3:  # transparency is laid on white, as here; grey has no such setting
        settings["do_convert_rgb"] = True
    write_json(folder / PROCESSOR, settings)


def answer_huggingface(folder: Path, images: Sequence[bytes]) -> NDArray[np.float32]:
    """Classifies encoded images with a folder, as its README shows it.

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


def write_onnx(model: Path, folder: Path) -> None:
    """Writes the network with its normalisation and the softmax, and the names of its classes.

    Args:
        model: A folder that `models.save` wrote.
        folder: An empty folder.

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
    program.save(folder / ONNX)
    write_json(folder / models.LABELS, list(loaded.labels))
    write_json(folder / models.IMAGES, package.images_of(model))


def answer_onnx(folder: Path, images: Sequence[bytes]) -> NDArray[np.float32]:
    """Classifies encoded images with the file.

    Returns:
        float32 (images, classes).
    """
    import onnxruntime

    described = json.loads((folder / models.IMAGES).read_text(encoding="utf-8"))
    form = {name: described[name] for name in ("size", "channels", "resize")}
    session = onnxruntime.InferenceSession(folder / ONNX, providers=["CPUExecutionProvider"])
    probabilities: NDArray[np.float32]
    pixels = np.stack([to_array(data, **form) for data in images])
    [probabilities] = session.run(None, {"images": pixels})
    return probabilities


FORMATS = {
    "huggingface": (write_huggingface, answer_huggingface),
    "onnx": (write_onnx, answer_onnx),
}
