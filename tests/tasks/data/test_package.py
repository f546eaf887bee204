import json

import pytest

import models
from tasks.data.package import FILES, classes_digest, code_of, package_digest
from tests.tasks.toy_model import LABELS, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "train").folder / "model"


def digest(model, precision="fp32"):
    return package_digest(model, precision, code_of(model))


def test_a_renamed_class_is_another_package_with_the_same_weights(tmp_path, model):
    renamed = write_model(tmp_path / "renamed", labels=("ant", "wasp", "cat", "dog"))
    weights = [folder / "model.safetensors" for folder in (model, renamed.folder / "model")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert digest(renamed.folder / "model") != digest(model)
    assert classes_digest(reversed(LABELS)) == classes_digest(LABELS) != classes_digest(LABELS[1:])


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("images.json", {"size": 16}),
        ("images.json", {"channels": 3}),
        ("images.json", {"resize": "stretch"}),
        ("model.json", {"network": {}}),
    ],
)
def test_all_that_decides_an_answer_is_part_of_the_identity(model, file, change):
    before = digest(model)
    (model / file).write_text(json.dumps(json.loads((model / file).read_text()) | change))
    assert digest(model) != before


def test_every_file_of_a_model_and_its_precision_and_code_count(model):
    assert {path.name for path in model.iterdir()} == set(FILES)
    code, before = code_of(model), digest(model)
    assert before != package_digest(model, "bf16", code)
    assert before != package_digest(model, "fp32", code | {"models.image": "another"})
    assert before == package_digest(model, "fp32", code)
    (model / "model.safetensors").write_bytes(b"other weights")
    assert before != package_digest(model, "fp32", code)


def test_the_module_that_makes_a_custom_network_is_code_of_its_package(tmp_path):
    settings = {"factory": "examples.network:build_model", "arguments": {"channels": 1}}
    network = models.build("custom", settings, (8, 8, 1), 2)
    images = {"size": 8, "channels": 1, "resize": "crop"}
    models.save(
        network, tmp_path, family="custom", settings=settings, labels=("a", "b"), images=images
    )
    code = code_of(tmp_path).keys()
    assert {"examples.network", "models.custom_network", "models.serving"} <= code
