"""Two clones with stores of their own, and an object store behind both."""

import os
import shutil
from dataclasses import replace

import pytest

from retrain.outputs import MANIFEST
from tests import templates
from tests.flows.conftest import Clone, copy_clone, ran
from tests.retrain.test_store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def other(clone, tmp_path) -> Clone:
    """A clone of the same code that has run nothing."""
    other = copy_clone(clone, tmp_path / "other")
    shutil.rmtree(other.root / ".retrain")
    (other.root / "mlflow.db").unlink()
    templates.place_mlflow_database(other.root)
    return replace(other)


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
    store = Store(other.root / ".retrain" / "store")
    fetched = {
        path.relative_to(store.root).parts[0]
        for path in store.root.glob("*/*/**/*")
        if path.is_file() and path.name != MANIFEST and not path.name.startswith(".")
    }
    print(fetched, list(store.root.glob("p*/*/**/*")))
    assert fetched.isdisjoint({"preprocess"})
    # Nothing is asked of a remote when all is here.
    monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert other.train()["unchanged"]
