"""The folders of the machines of a cluster."""

import os
import tempfile

import pytest

from retrain.errors import UsageError
from retrain.servers import machines


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"retrain-{os.getuid()}"


def test_the_store_of_a_machine_is_a_folder_that_only_its_user_can_open(temporary):
    assert machines.node_root() == machines.node_root() == temporary / "store"
    assert temporary.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("is_link", [False, True])
def test_a_folder_that_another_user_has_put_there_is_refused(temporary, tmp_path, is_link):
    if is_link:
        (tmp_path / "own").mkdir()
        temporary.symlink_to(tmp_path / "own")
    else:
        temporary.mkdir()
    os.chown(temporary, 65534, 65534, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to another user"):
        machines.node_root()
