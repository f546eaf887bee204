"""Where the reference of a version comes from."""

from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.drift.reference import find_reference

VERSION = ModelVersion(
    name="toy", weights="w", package_digest="0" * 64, train_digest="t", train_key=None, start=None,
    family="vit", images={}, classes=None, metrics={}, data=None, commit=None, run_id="r",
    version=1, aliases=(), verdict=None, created="",
)  # fmt: skip


def test_without_the_evaluation_in_the_store_there_is_no_reference(tmp_path):
    assert find_reference(Project(tmp_path), VERSION) is None
    assert not list(tmp_path.rglob("*"))
