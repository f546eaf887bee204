import joblib
import pytest

from retrain.servers import ray_cluster


@pytest.mark.parametrize(("cores", "told"), [(1, ray_cluster.MIN_LOGICAL_CPUS), (16, 16)])
def test_ray_is_told_of_the_cores_that_a_container_may_use(monkeypatch, cores, told):
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert ray_cluster.logical_cpus() == told
