import pytest

from retrain.registry import packages, tracking
from tests.retrain.registry.helpers import WEIGHTS, register


@pytest.mark.parametrize("is_here", [True, False])
def test_a_version_is_brought_back_from_the_registry_alone(
    project, name, tmp_path, monkeypatch, is_here
):
    made = register(project, name, "a", tmp_path)
    if not is_here:  # as if MLflow's artifacts were on another machine
        monkeypatch.setattr(tracking, "local_path", lambda _: None)
    package = packages.download(project, made)
    assert package.is_relative_to(project.state / "champions") != is_here
    assert (package / "MLmodel").is_file()
    weights = package / packages.MODEL / packages.WEIGHTS
    assert weights.read_bytes() == WEIGHTS + b"a"
    weights.write_bytes(b"other")
    if not is_here:  # the copy is made anew
        assert packages.download(project, made) == package
        assert weights.read_bytes() == WEIGHTS + b"a"
        return
    with pytest.raises(ValueError, match="version 1 are not those that were registered"):
        packages.download(project, made)
    weights.unlink()
    with pytest.raises(ValueError, match="version 1 are gone"):
        packages.download(project, made)
