"""The second flow: pulls and checks the data, and stops there."""

import pytest

from tests.flows.conftest import draw_photos, make_clone


@pytest.fixture(scope="module")
def fresh(tmp_path_factory, prefect_api):
    """A clone of its own: what it has checked is not in the store of the others."""
    return make_clone(tmp_path_factory.mktemp("validate"), prefect_api)


def validate(clone, *arguments, code=0):
    return clone.retrain("validate", "vit", *arguments, code=code)


def test_the_data_is_checked_and_no_model_is_trained(fresh):
    assert "pull would be the first step to run: first run." in validate(fresh, "--dry-run").stdout
    assert [path.name for path in (fresh.root / ".retrain").rglob("*")] == ["prefect"]  # empty
    document = fresh.json("validate", "vit")
    assert [step["step"] for step in document["steps"]] == ["pull", "validate"]
    assert document["data"]["rows"] == {"train": 1237, "val": 200, "test": 360}
    assert document["outcome"] == "The data of vit passes its checks."
    assert not (fresh.root / "mlflow.db").exists()
    assert "Nothing changed since run" in validate(fresh).stdout


def test_an_empty_folder_beside_the_classes_is_named(clone, tmp_path):
    photos = draw_photos(tmp_path / "photos")
    (photos / "fox").mkdir()
    refused = clone.json("validate", "vit", "--set", f"data.path={photos}", code=1)["error"]
    assert "fox is empty. Put the images of the class there, or remove it." in refused
