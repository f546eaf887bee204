"""What is exported gives the same answers, without this project."""

import io
import json
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
from tests.tasks.toy_model import IMAGES, LABELS, VERSION, model_in, write_report

ROOT = Path(__file__).parents[3]

# Classifies the files in a folder as the README shows it, and prints labels and probabilities.
PROGRAM = """
import json, sys
from pathlib import Path
from PIL import Image, ImageOps
from transformers import AutoImageProcessor, AutoModelForImageClassification

folder, images = map(Path, sys.argv[1:])
processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
model = AutoModelForImageClassification.from_pretrained(folder)
found = {}
for file in sorted(images.iterdir()):
    image = ImageOps.exif_transpose(Image.open(file)).convert("L")
    logits = model(**processor(image, return_tensors="pt")).logits
    found[file.name] = logits.softmax(-1)[0].tolist()
ours = [name for name in sys.modules if name.split(".")[0] in ("models", "retrain", "tasks")]
print(json.dumps([list(model.config.id2label.values()), found, ours]))
"""


RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
          "layer_type": "basic"}  # fmt: skip
CONVNEXT = {"model_type": "convnext", "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
VIT = {"patch_size": 8, "hidden_size": 16, "layers": 1, "heads": 2}


def encoded(width: int, height: int, mode="RGB", seed=0) -> bytes:
    """A PNG with a different picture for each seed."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (height // 2 + 1, width // 2 + 1, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
    image = image.convert(mode)
    if mode.endswith("A"):
        image.putalpha(Image.linear_gradient("L").resize((width, height)))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def saved(folder: Path, family="vit", settings=VIT, channels=3, resize="stretch") -> Path:
    """A network with random weights, as `train` saves it, and with a normalisation of its own."""
    import torch

    torch.manual_seed(0)
    network = models.build(family, settings, (32, 32, channels), 3)
    network.description["mean"], network.description["std"] = [0.4] * channels, [0.3] * channels
    with torch.no_grad():
        last = [each for each in network.parameters() if each.ndim == 2][-1]
        last.mul_(8)  # else all answers are nearly equal
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


def test_the_auto_classes_load_it_in_a_process_without_the_project(project, version, tmp_path):
    done = export(project, version, tmp_path / "new" / "toy", "huggingface")
    assert (done.compared, done.same) == (ROWS, ROWS)
    assert done.difference < 1e-5
    name = str(tmp_path / "new" / "toy")
    settings = {"pretrained": name, "pretrained_version": find_version(name, tmp_path)}
    again = models.build("auto", settings, (8, 8, 1), 2)
    assert again.description["config"]["retrain_weights"] == version.weights
    text = (tmp_path / "new" / "toy" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\npipeline_tag: image-classification\n")
    assert packages.read_card(project, version) in text
    assert done.comparison in text
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(program, "README.md", "exec")
    images = tmp_path / "images"
    images.mkdir()
    for number, side in enumerate((8, 20, 64)):
        (images / f"{number}.png").write_bytes(encoded(side, side, "L", number))
    asked = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, done.folder, images],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stderr
    labels, found, ours = json.loads(asked.stdout.splitlines()[-1])
    assert (labels, ours) == (list(LABELS), [])
    model = packages.download(project, version) / packages.MODEL
    right = expected(model, [(images / name).read_bytes() for name in found])
    assert np.abs(np.array(list(found.values())) - right).max() < 1e-5


def test_an_onnx_file_gives_the_probabilities_of_the_package(
    project, version, tmp_path, monkeypatch
):
    done = export(project, version, tmp_path / "toy", "onnx")
    assert (done.compared, done.same) == (ROWS, ROWS)
    assert done.difference < 1e-5
    write, answer = FORMATS["onnx"]
    monkeypatch.setitem(FORMATS, "onnx", (write, lambda *of: answer(*of) + 0.002))
    with pytest.raises(ValueError, match=r"For 0 they differ by 0\.001 at most, which 100% of the"):
        export(project, version, tmp_path / "other", "onnx")
    assert not (tmp_path / "other").exists()


def test_what_is_there_is_not_overwritten(project, version, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for place in ("full", "full/a"):
        with pytest.raises(UsageError, match=f"{place} is there already: name a new or empty"):
            export(project, version, tmp_path / place, "huggingface")


def test_a_network_of_ones_own_is_exported_with_the_module_of_its_package(
    project, run, tmp_path, monkeypatch
):
    settings = {"factory": "examples.network:build_model", "arguments": {"channels": 1}}
    folder = project.root / "custom"
    network = models.build("custom", settings, (8, 8, 1), len(LABELS))
    made = {"settings": settings, "labels": LABELS, "images": IMAGES}
    models.save(network, folder / "model", family="custom", **made)
    trained = model_in(folder)
    write_report(trained, project)
    run(trained, "first", intent=COMPARE)
    version = versions.get(project, "toy", 1)
    # As in the command: the project's folder is not where modules are imported from.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(ROOT))])
    for name in ("examples", "examples.network"):
        monkeypatch.delitem(sys.modules, name)
    done = export(project, version, tmp_path / "onnx", "onnx")
    assert (done.compared, done.same) == (ROWS, ROWS)
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
            data = encoded(width, height, mode)
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


@pytest.mark.parametrize(
    ("form", "config"), [("huggingface", RESNET), ("huggingface", CONVNEXT), ("onnx", RESNET)]
)
def test_what_is_written_answers_as_the_network_that_was_saved(tmp_path, form, config):
    model = saved(tmp_path / "model", "auto", {"config": config})
    folder = tmp_path / "folder"
    folder.mkdir()
    write, answer = FORMATS[form]
    write(model, folder)
    images = [encoded(side, side, seed=side) for side in (32, 40, 64)]
    right = expected(model, images)
    assert np.ptp(right, axis=0).max() > 1e-3  # each image has another answer
    assert np.abs(answer(folder, images) - right).max() < 1e-5
    assert answer(folder, images[:1]).shape == (1, 3)


def test_without_the_libraries_onnx_is_one_sentence(project, version, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"needs onnx and onnxruntime and onnxscript: .*pip install -e '\.\[onnx\]"
    ):
        export(project, version, tmp_path / "toy", "onnx")
    assert not (tmp_path / "toy").exists()


def test_the_readme_of_an_onnx_file_makes_the_same_pixels(project, tmp_path):
    """The lines of its program between opening an image and asking the file."""
    model = saved(tmp_path / "model", resize="crop")
    text = readme(project, VERSION, "onnx", images_of(model), "fp32", "")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(program, "README.md", "exec")
    data = encoded(70, 50)
    (tmp_path / "photo.jpg").write_bytes(data)
    lines = program.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("image ="))
    last = next(n for n, line in enumerate(lines) if line.startswith("pixels ="))
    known = {"Image": Image, "np": np}
    body = "\n".join(lines[first : last + 1]).replace("photo.jpg", str(tmp_path / "photo.jpg"))
    exec("from PIL import ImageOps\n" + body, known)
    assert (known["pixels"][0] == to_array(data, 32, 3, "crop")).all()
