"""Writes a registered version in a form that others can load without this project."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import model_card, packages
from retrain.registry.versions import ModelVersion
from tasks.data import package
from tasks.data.metrics import acceptance
from tasks.promote.check import TOLERANCE, check_files, differences, example_for

FORMATS = {"huggingface": "tasks.promote.huggingface", "onnx": "tasks.promote.onnx_file"}
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
        difference: The largest difference of a probability; None if nothing was compared.
    """

    name: str
    version: int
    format: str
    folder: str
    compared: int
    same: int
    difference: float | None

    @property
    def outcome(self) -> str:
        """Where the export is, and how its answers compare, in two sentences."""
        location = f"{self.name} version {self.version} is in {self.folder}."
        return f"{location} {self.comparison}"

    @property
    def comparison(self) -> str:
        """How its answers compare with those of the package, in one sentence."""
        if self.difference is None:
            return "Its answers were not compared with those of the package."
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
    module: Any = import_module(FORMATS[form])
    if hasattr(module, "check"):
        module.check()
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
        tolerance = (TOLERANCE[serving["precision"]], 1.0) if form == "onnx" else RESIZED
        exported = _compared(module, version, target, example, form, folder, *tolerance)
        images = package.images_of(model)
        card = model_card.read(project, version)
        text = readme(version, card, module, images, serving["precision"], exported.comparison)
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
    module: Any,
    version: ModelVersion,
    target: Path,
    example: pa.Table | None,
    form: str,
    folder: Path,
    tolerance: float,
    share: float,
) -> Exported:
    """Compares the answers for the images that are kept with the version's run.

    Raises:
        ValueError: Too many answers differ.
    """
    same, agreeing, compared, largest = 0, 0, 0, None
    if example is not None and len(example):
        answers = module.answer(target, example["image"].to_pylist())
        if answers is not None:  # in the order of the labels
            apart, agree = differences(example, answers, tolerance)
            expected = np.array(example["probabilities"].to_pylist())
            same = int((answers.argmax(axis=1) == expected.argmax(axis=1)).sum())
            agreeing, compared, largest = int(agree.sum()), len(example), float(apart.max())
    exported = Exported(version.name, version.version, form, str(folder), compared, same, largest)
    if agreeing < share * compared:
        raise ValueError(
            f"{version.name} version {version.version} is not exported: what was written gives "
            f"other answers. {exported.comparison} For {agreeing:,} they differ by {tolerance:g} "
            f"at most, which {share:.0%} of the images have to."
        )
    return exported


def readme(
    version: ModelVersion,
    card: str | None,
    module: Any,
    images: Mapping[str, Any],
    precision: str,
    comparison: str,
) -> str:
    """The text of the README in the folder (Markdown).

    Args:
        version: The version of the model.
        card: The card of the version, if it has one.
        module: The module of the format.
        images: What images the model takes, as `images_of` gives it.
        precision: In which the package answers.
        comparison: The sentence about the answers.
    """
    lines = []
    if meta := getattr(module, "META", None):  # as model pages on the Hugging Face hub have it
        lines += ["---", *(f"{name}: {value}" for name, value in meta.items()), "---", ""]
    lines += [card or f"# {version.name}\n", "## How to use what is here", ""]
    lines += [f"Version {version.version} of `{version.name}`, as its registry has it.", ""]
    lines += [module.usage(images), "", comparison]
    if version.min_confidence is not None:
        lines += [
            f"The package {acceptance(version.min_confidence)}: `min_confidence` in "
            f"{module.METADATA}."
        ]
    if precision != "fp32":
        lines += [f"The package answers in {precision}; what is here calculates in fp32."]
    return "\n".join(lines) + "\n"
