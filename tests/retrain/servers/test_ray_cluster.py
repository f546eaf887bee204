import joblib
import pytest

from retrain.servers import ray_cluster


@pytest.mark.parametrize(("cores", "expected"), [(1, ray_cluster.MIN_LOGICAL_CPUS), (16, 16)])
def test_ray_gets_the_cores_that_a_container_may_use(monkeypatch, cores, expected):
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert ray_cluster.logical_cpus() == expected
