"""Two clones with stores of their own, and an object store behind both."""

import shutil

import pytest

from retrain import store_mirror
from tests import templates
from tests.flows.conftest import Clone, copy_clone, ran

pytestmark = pytest.mark.slow


@pytest.fixture
def other(clone, tmp_path) -> Clone:
    """A clone of the same code that has run nothing."""
    other = copy_clone(clone, tmp_path / "other")
    shutil.rmtree(other.root / ".retrain")
    (other.root / "mlflow.db").unlink()
    templates.place_mlflow_database(other.root)
    return other


def test_a_laptop_takes_what_another_machine_has_trained(clone, first, other, bucket, monkeypatch):
    monkeypatch.setenv("RETRAIN_STORE_REMOTE", bucket)
    sent = clone.train("--run")
    assert ran(sent) == []
    document = other.train()
    assert ran(document) == []
    assert document["promoted"]
    assert document["model"]["digest"] == first["model"]["digest"]
    of = lambda found: {step["step"]: step["digest"] for step in found["steps"]}  # noqa: E731
    steps = ("pull", "validate", "preprocess", "train", "evaluate")
    assert [of(document)[step] for step in steps] == [of(first)[step] for step in steps]
    assert [*other.root.glob(".retrain/store/train/*/model/model.safetensors")]
    # A run that has nothing to do asks nothing.
    store_mirror._files.cache_clear()
    done = other.retrain("train", "vit", AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert "Nothing changed" in done.stdout
    assert "does not answer" not in done.stdout + done.stderr
    store_mirror._files.cache_clear()

    # Its page needs the list of the images before, and fetches none of them for thumbnails.
    shutil.rmtree(other.root / ".retrain/store/pull")
    document = other.train("--set", "data.label_column=label", "--set", "train.epochs=1")
    [pulled] = (other.root / ".retrain/store/pull").glob("*/manifest.json")
    assert pulled.parent.name == document["steps"][0]["key"]
    page = (other.root / document["look"]["report"]).read_text()
    assert "The same images, with the same labels, in the same splits." in page
