import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from retrain.servers import ray_cluster

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("cores", "expected"), [(1, ray_cluster.MIN_LOGICAL_CPUS), (16, 16)])
def test_ray_gets_the_cores_that_a_container_may_use(monkeypatch, cores, expected):
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
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
