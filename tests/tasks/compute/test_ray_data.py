"""Work on many units: by workers of Ray Data or in this process, with a network or without."""

import os
import signal
import threading
import time

import joblib
import pytest

from retrain.errors import UsageError
from retrain.servers import ray_cluster
from tasks.compute import ray_data
from tasks.compute.ray_data import each

MUCH = 1e6  # seconds
places = pytest.mark.parametrize("seconds", [0.01, MUCH], ids=["here", "ray"])


def results_of(make, units, *, seconds=MUCH, on_gpus=False):
    return list(each(make, units, seconds=seconds, on_gpus=on_gpus))


def of(function):
    return lambda device: function


@pytest.fixture
def cluster(ray_session, monkeypatch):
    """The Ray of this machine, as if it were one of several machines."""
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)


class Loaded:
    """What a worker has loaded; it says who it is and what it was called with."""

    def __init__(self, device: str) -> None:
        self.device, self.name = device, f"{os.getpid()} {id(self)}"

    def __call__(self, unit: int) -> tuple[int, str, str, int]:
        return 2 * unit, self.name, self.device, os.getpid()


@places
def test_results_come_in_order_from_workers_that_load_once(cluster, seconds):
    results = results_of(Loaded, range(60), seconds=seconds, on_gpus=True)
    assert [twice for twice, *_ in results] == list(range(0, 120, 2))
    processes = {process for *_, process in results}
    assert len({name for _, name, *_ in results}) == len(processes)  # one network in each process
    assert (os.getpid() in processes) == (seconds < 1)
    assert {device for _, _, device, _ in results} == {"cpu"}


@pytest.mark.parametrize("on_gpus", [False, True])
def test_here_as_many_calls_at_once_as_there_are_cores(monkeypatch, on_gpus):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    barrier = threading.Barrier(3, timeout=20)  # broken with fewer
    found = results_of(
        of(lambda unit: barrier.wait() >= 0), range(6), seconds=0.01, on_gpus=on_gpus
    )
    assert found == [True] * 6


def test_a_machine_of_a_cluster_that_does_not_see_the_store_gets_no_work(cluster, monkeypatch):
    monkeypatch.setattr(ray_cluster, "machines_without", lambda folder: ["other (10.0.0.2)"])
    ray_cluster.check_store.cache_clear()
    with pytest.raises(UsageError, match=r"The machine other \(10.0.0.2\) .* does not see"):
        results_of(Loaded, [1, 2, 3])


@places
def test_an_error_of_a_unit_is_raised_as_it_is(ray_session, seconds):
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        results_of(of(open), ["/nowhere"], seconds=seconds)


@pytest.mark.slow
def test_the_first_unit_that_fails_counts_and_the_rest_are_left(ray_session, tmp_path):
    def work(unit):
        (tmp_path / str(unit)).touch()
        time.sleep(0.1 if unit else 0.5)
        if unit < 2:
            raise ValueError(f"number {unit}")

    with pytest.raises(ValueError, match="number 0"):
        results_of(of(work), range(300))
    time.sleep(1)
    begun = len(list(tmp_path.iterdir()))
    assert begun < 150
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == begun


@pytest.mark.slow
def test_a_unit_whose_worker_is_lost_is_done_again(ray_session, tmp_path):
    def work(unit):
        if unit == 2 and not (tmp_path / "lost").exists():
            (tmp_path / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return unit

    assert results_of(of(work), [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert (tmp_path / "lost").exists()


def test_work_ends_beside_training_workers_and_says_nothing(ray_session, capfd):
    """They take half of the CPUs of a small Ray, and keep them."""
    import ray

    half = ray.cluster_resources()["CPU"] / 2
    group = ray.util.placement_group([{"CPU": half / 2}] * 2)
    ray.get(group.ready())
    capfd.readouterr()
    try:
        assert results_of(of(abs), [-1, -2, -3]) == [1, 2, 3]
    finally:
        ray.util.remove_placement_group(group)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("cores", "seconds", "on_gpus", "is_worth_it"),
    [
        (1, MUCH, False, False),
        (2, 1.9 * ray_data.START, False, False),
        (2, 2.1 * ray_data.START, False, True),
        (64, 1.1 * ray_data.START, False, True),
        (64, MUCH, True, False),  # a network stays here without a cluster
    ],
)
def test_ray_is_worth_a_start_that_takes_less_than_it_saves(
    ray_session, monkeypatch, cores, seconds, on_gpus, is_worth_it
):
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    [process] = results_of(of(lambda unit: os.getpid()), [0], seconds=seconds, on_gpus=on_gpus)
    assert (process != os.getpid()) == is_worth_it
