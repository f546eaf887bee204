import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import joblib
import psutil
import pytest

from retrain.errors import UsageError
from retrain.servers import ray_cluster

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("cores", "expected"), [(1, ray_cluster.MIN_LOGICAL_CPUS), (16, 16)])
def test_ray_gets_the_cores_that_a_container_may_use(monkeypatch, cores, expected):
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert ray_cluster.logical_cpus() == expected


def test_all_of_ray_listens_on_loopback_only(ray_session):
    import ray

    ray.get(ray.remote(lambda: 1).remote())  # so that there is a worker
    processes = psutil.Process().children(recursive=True)
    assert any(process.name().startswith("ray::") for process in processes)
    listening = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # some of Ray's soon end
            listening |= {
                socket.laddr.ip.removeprefix("::ffff:")
                for socket in process.net_connections("inet")
                if socket.status == psutil.CONN_LISTEN
            }
    assert listening == {"127.0.0.1"}


UNDER_UV = """
import retrain
from retrain.errors import UsageError
from retrain.servers import ray_cluster
ray_cluster.connect()
import ray
print(ray.get_runtime_context().runtime_env)
"""


@pytest.mark.slow
def test_under_uv_run_the_workers_are_those_of_this_environment(tmp_path):
    """Ray's own hook would send the folder to them, and start each of them by `uv run`."""
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run(
        [uv, "run", "--no-project", "--python", sys.executable, "python", "-c", UNDER_UV],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{}\n", done.stderr


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"retrain-{os.getuid()}"


def test_the_store_of_a_machine_is_a_folder_that_only_its_user_can_open(temporary):
    assert ray_cluster.node_root() == ray_cluster.node_root() == temporary / "store"
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
        ray_cluster.node_root()
