"""What is exported gives the same answers, without this project."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import models
from models.image import to_array
from models.pretrained import find_version
from retrain.errors import UsageError
from retrain.registry import packages, versions
from tasks.data.package import images_of
from tasks.promote import export as exporting
from tasks.promote.export import FORMATS, export, readme
from tests.tasks.promote.conftest import COMPARE, ROWS
from tests.tasks.toy_data import encoded
from tests.tasks.toy_model import LABELS, VERSION, write_custom, write_report

# Names what a program has imported of this project, after it has run.
OURS = """
import sys
print([name for name in sys.modules if name.split(".")[0] in ("models", "retrain", "tasks")])
"""
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
          "layer_type": "basic"}  # fmt: skip
VIT = {"patch_size": 8, "hidden_size": 16, "layers": 1, "heads": 2}


def png(width: int, height: int, mode="RGB", seed=0) -> bytes:
    """A PNG with a different picture for each seed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 2 + 1, width // 2 + 1, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
    image = image.convert(mode)
    if mode.endswith("A"):
        image.putalpha(Image.linear_gradient("L").resize((width, height)))
    return encoded(image, "PNG")


def saved(folder: Path, family="vit", settings=VIT, channels=3, resize="stretch") -> Path:
    """A network with random weights, as `train` saves it, and with a normalisation of its own."""
    import torch

    torch.manual_seed(0)
    network = models.build(family, settings, (32, 32, channels), 3)
    network.description["mean"], network.description["std"] = [0.4] * channels, [0.3] * channels
    network.temperature = 0.1  # else all answers are nearly equal
    images = {"size": 32, "channels": channels, "resize": resize}
    labels = ("ant", "bee", "cat")
    models.save(network, folder, family=family, settings=settings, labels=labels, images=images)
    return folder


def expected(model: Path, images: list[bytes]) -> np.ndarray:
    """The probabilities of a saved network for encoded images."""
    import torch

    loaded = models.load(model)
    pixels = np.stack([to_array(data, **loaded.images) for data in images])
    return loaded.module.probabilities(torch.from_numpy(pixels), "fp32").numpy()


@pytest.fixture
def version(project, one):
    return versions.get(project, "toy", 1)


def program_in(text: str) -> str:
    """The program that a README shows."""
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return program


def test_the_program_of_the_readme_answers_in_a_process_without_the_project(
    project, version, tmp_path
):
    folder = tmp_path / "new" / "toy"
    done = export(project, version, folder, "huggingface")
    assert (done.compared, done.same) == (ROWS, ROWS)
    assert done.difference < 1e-5
    settings = {"pretrained": str(folder), "pretrained_version": find_version(folder, tmp_path)}
    again = models.build("auto", settings, (8, 8, 1), 2)
    assert again.description["config"]["retrain_weights"] == version.weights
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\npipeline_tag: image-classification\n")
    assert packages.read_card(project, version) in text
    assert done.comparison in text
    photo = png(20, 20, "L")
    (folder / "photo.jpg").write_bytes(photo)
    asked = subprocess.run(
        [sys.executable, "-I", "-c", program_in(text) + OURS],
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stderr
    [right] = expected(packages.download(project, version) / packages.MODEL, [photo])
    label, probability, ours = asked.stdout.split()
    assert (label, ours) == (LABELS[right.argmax()], "[]")
    assert float(probability) == pytest.approx(right.max(), abs=1e-5)


@pytest.mark.parametrize(
    ("form", "apart", "said"),
    [
        ("onnx", 0.002, r"For 0 they differ by 0\.001 at most, which 100% of the images"),
        ("huggingface", 0.11, r"For 0 they differ by 0\.1 at most, which 95% of the images"),
    ],
)
def test_an_export_that_gives_other_answers_is_none(
    project, version, tmp_path, monkeypatch, form, apart, said
):
    write, answer = FORMATS[form]
    monkeypatch.setitem(FORMATS, form, (write, lambda *of: answer(*of) + apart))
    with pytest.raises(ValueError, match=said):
        export(project, version, tmp_path / "other", form)
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_written_is_one_sentence(project, version, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for place in ("full", "full/a"):
        with pytest.raises(UsageError, match=f"{place} is there already: name a new or empty"):
            export(project, version, tmp_path / place, "huggingface")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    needed = r"needs onnx and onnxruntime and onnxscript: .*pip install -e '\.\[onnx\]"
    with pytest.raises(UsageError, match=needed):
        export(project, version, tmp_path / "toy", "onnx")
    [file] = project.root.glob("mlruns/**/packages/*/requirements.txt")
    file.write_text(f"{file.read_text()}\n")
    with pytest.raises(ValueError, match=r"requirements\.txt in .* has changed since"):
        export(project, version, tmp_path / "toy", "huggingface")
    assert not (tmp_path / "toy").exists()


def test_a_network_of_ones_own_is_exported_with_the_module_of_its_package(
    project, run, tmp_path, monkeypatch
):
    trained = write_custom(project.root / "custom", channels=1)
    write_report(trained, project)
    run(trained, "first", intent=COMPARE)
    version = versions.get(project, "toy", 1)
    # As in the command: the project's folder is not where modules are imported from.
    root = str(Path(models.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", root)])
    for name in ("examples", "examples.network"):
        monkeypatch.delitem(sys.modules, name)
    done = export(project, version, tmp_path / "onnx", "onnx")
    assert (done.compared, done.same, done.difference < 1e-5) == (ROWS, ROWS, True)
    with pytest.raises(ValueError, match="use --format onnx"):
        export(project, version, tmp_path / "huggingface", "huggingface")


@pytest.mark.parametrize(("resize", "channels"), [("crop", 3), ("stretch", 1), ("stretch", 3)])
def test_the_processor_makes_the_pixels_of_the_training(tmp_path, resize, channels):
    from transformers import AutoImageProcessor

    model = saved(tmp_path / "model", channels=channels, resize=resize)
    folder = tmp_path / "folder"
    folder.mkdir()
    exporting.write_huggingface(model, folder)
    prepare = AutoImageProcessor.from_pretrained(folder, backend="pil")
    modes = ("L",) if channels == 1 else ("RGB", "L", "RGBA", "LA", "P")
    for width, height in ((32, 32), (50, 50), (11, 11), (70, 50), (50, 91)):
        for mode in modes:
            data = png(width, height, mode)
            given = prepare(Image.open(io.BytesIO(data)), return_tensors="np")["pixel_values"][0]
            pixels = to_array(data, 32, channels, resize)
            right = (pixels.transpose(2, 0, 1) / 255 - 0.4) / 0.3
            assert given.shape == right.shape
            difference = np.abs(given - right)
            if resize == "crop" and width != height:
                assert difference.mean() < 1 / 255 / 0.3
                assert difference[:, 2:-2, 2:-2].max() < 8 / 255 / 0.3  # of a dithered image
            else:
                assert difference.max() < 1e-5, (width, height, mode)


@pytest.mark.parametrize("form", FORMATS)
def test_the_program_of_the_readme_answers_as_another_network_that_was_saved(
    project, tmp_path, monkeypatch, capsys, recwarn, form
):
    model = saved(tmp_path / "model", "auto", {"config": RESNET}, resize="crop")
    write, answer = FORMATS[form]
    recwarn.clear()
    write(model, tmp_path)
    said = [each.message for each in recwarn if each.category is not ResourceWarning]
    assert said == []
    images = [png(side, side, seed=side) for side in (32, 40, 64)]
    right = expected(model, images)
    assert np.ptp(right, axis=0).max() > 1e-3  # each image has another answer
    assert np.abs(answer(tmp_path, images) - right).max() < 1e-5
    photo, known = png(70, 50), {}
    (tmp_path / "photo.jpg").write_bytes(photo)
    monkeypatch.chdir(tmp_path)
    exec(program_in(readme(project, VERSION, form, images_of(model), "fp32", "")), known)
    label = ("ant", "bee", "cat")[expected(model, [photo])[0].argmax()]
    assert capsys.readouterr().out.split()[0] == label
    if form == "onnx":  # there, to cut and to scale are lines of the program
        assert (known["pixels"][0] == to_array(photo, 32, 3, "crop")).all()
