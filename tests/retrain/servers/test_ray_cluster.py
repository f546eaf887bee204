from contextlib import suppress

import joblib
import psutil
import pytest

from retrain.servers import ray_cluster


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
