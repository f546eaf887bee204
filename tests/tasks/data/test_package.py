import pytest

from tasks.data.package import FILES, classes_digest, code_of, package_digest
from tests.tasks.toy_model import LABELS, write_custom, write_model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "train").folder / "model"


def digest(model):
    return package_digest(model, "fp32", code_of(model))


def test_the_order_of_the_classes_does_not_count():
    assert classes_digest(reversed(LABELS)) == classes_digest(LABELS) != classes_digest(LABELS[1:])


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("images.json", b'"size": 8', b'"size": 16'),
        ("images.json", b'"channels": 1', b'"channels": 3'),
        ("images.json", b'"crop"', b'"stretch"'),
        ("model.json", b'"heads": 2', b'"heads": 4'),
        ("labels.json", b'"bee"', b'"wasp"'),
        ("model.safetensors", b"F32", b"I32"),
    ],
)
def test_all_that_decides_an_answer_is_part_of_the_identity(model, file, before, after):
    whole = digest(model)
    content = (model / file).read_bytes()
    assert before in content
    (model / file).write_bytes(content.replace(before, after))
    assert digest(model) != whole


def test_every_file_of_a_model_and_its_precision_and_code_count(model):
    assert {path.name for path in model.iterdir()} == set(FILES)
    code = code_of(model)
    others = (("bf16", code), ("fp32", code | {"models.image": "another"}))
    assert digest(model) not in [package_digest(model, *each) for each in others]
    assert digest(model) == package_digest(model, "fp32", code)


def test_the_module_that_makes_a_custom_network_is_code_of_its_package(tmp_path):
    code = code_of(write_custom(tmp_path, channels=1).folder / "model")
    assert {"examples.network", "models.custom_network", "models.serving"} <= code.keys()
