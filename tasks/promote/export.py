"""Writes a registered version in a form that others can load without this project."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import model_card, packages
from retrain.registry.versions import ModelVersion
from tasks.data import package
from tasks.data.metrics import acceptance
from tasks.promote import huggingface, onnx_file
from tasks.promote.card import rendered
from tasks.promote.check import TOLERANCE, check_files, differences, example_for

FORMATS = {"huggingface": huggingface, "onnx": onnx_file}
README = "README.md"
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
    module = FORMATS[form]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".export-") as place:
        scratch, target = Path(place), Path(place, "export")
        target.mkdir()
        (scratch / "package").mkdir()
        fetched = packages.fetch(project, version, scratch / "package")
        example = example_for(project, version)
        check_files(fetched, version, example)
        model = fetched / package.MODEL
        with _importing_from(fetched / package.CODE):
            module.write(model, target, version.min_confidence)
        serving = json.loads((fetched / package.SERVING).read_text(encoding="utf-8"))
        answers = module.answer(target, example["image"].to_pylist())
        tolerance = (TOLERANCE[serving["precision"]], 1.0) if form == "onnx" else RESIZED
        exported = _compared(version, form, folder, example, answers, *tolerance)
        images, comparison = package.images_of(model), exported.comparison
        text = readme(project, version, form, images, serving["precision"], comparison)
        (target / README).write_text(text, encoding="utf-8")
        target.replace(folder)
    return exported


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Lets a package's modules of a user's be imported; the project may have others by now."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


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
    same, largest = int((answers.argmax(axis=1) == expected.argmax(axis=1)).sum()), apart.max()
    counts = (len(example), same, float(largest))
    exported = Exported(version.name, version.version, form, str(folder), *counts)
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
    least = version.min_confidence
    return rendered(
        "readme",
        version=version,
        form=form,
        card=model_card.read(project, version),
        images=images,
        precision=precision,
        comparison=comparison,
        accepts=None if least is None else acceptance(least),
    )
