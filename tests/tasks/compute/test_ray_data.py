"""Work on many units: as a plan of Ray Data or in this process, with a network or without."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import joblib
import pytest

from tasks.compute import ray_data
from tasks.compute.ray_data import map_units, map_with_workers

MUCH = 1e6  # seconds
places = pytest.mark.parametrize("seconds", [0.01, MUCH], ids=["here", "plan"])


def map_all(function, units, *, seconds=MUCH, done=lambda unit: None):
    return map_units(function, units, seconds=seconds, done=done)


def map_loaded(make, units, *, seconds=MUCH, done=lambda unit: None):
    return map_with_workers(make, units, seconds=seconds, done=done)


@pytest.fixture
def cluster(ray_session, monkeypatch):
    """The Ray of this machine, as if it were one of several machines."""
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)


@places
def test_results_come_in_order_and_little_work_is_done_here(ray_session, seconds):
    seen = []
    units = list(range(100))
    results = map_all(lambda n: (2 * n, os.getpid()), units, seconds=seconds, done=seen.append)
    assert [twice for twice, _ in results] == list(range(0, 200, 2))
    assert (os.getpid() in {process for _, process in results}) == (seconds < 1)
    assert seen == units


class Loaded:
    """What a worker has loaded; it says who it is and what it was called with."""

    def __init__(self, device: str) -> None:
        self.device, self.name = device, f"{os.getpid()} {id(self)}"

    def __call__(self, unit: int) -> tuple[int, str, str, int]:
        return 2 * unit, self.name, self.device, os.getpid()


@places
def test_results_come_in_order_from_workers_that_load_once(cluster, seconds):
    seen = []
    results = map_loaded(Loaded, list(range(60)), seconds=seconds, done=seen.append)
    assert [twice for twice, *_ in results] == list(range(0, 120, 2))
    assert seen == list(range(60))
    processes = {process for *_, process in results}
    assert len({name for _, name, *_ in results}) == len(processes)  # one network in each process
    assert (os.getpid() in processes) == (seconds < 1)
    assert {device for _, _, device, _ in results} == {"cpu"}


def test_much_work_with_a_network_stays_here_without_a_cluster():
    found = map_loaded(Loaded, [1, 2, 3])
    assert {process for *_, process in found} == {os.getpid()}


def test_as_many_calls_with_a_network_at_once_as_there_are_cores(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    barrier = threading.Barrier(3, timeout=20)  # broken with fewer

    def make(device):
        return lambda unit: barrier.wait() >= 0

    assert map_loaded(make, list(range(6)), seconds=0.01) == [True] * 6


def test_little_work_runs_in_as_many_threads_as_there_are_cores(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    barrier = threading.Barrier(3, timeout=20)
    assert map_all(lambda unit: barrier.wait() >= 0, list(range(6)), seconds=0.01) == [True] * 6


def test_little_work_starts_no_ray():
    program = (
        "import sys; from tasks.compute.ray_data import map_units; "
        "print(map_units(abs, [-1, 2], seconds=1.0, done=abs), 'ray' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[1, 2] False\n"


@places
def test_an_error_of_a_unit_is_raised_as_it_is(ray_session, seconds):
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        map_all(open, ["/nowhere"], seconds=seconds)


@pytest.mark.slow
def test_the_first_unit_that_fails_counts_and_the_rest_are_left(ray_session, tmp_path):
    def work(unit):
        (tmp_path / str(unit)).touch()
        if unit == 0:
            time.sleep(0.5)
            raise ValueError("the first")
        time.sleep(0.1)
        if unit == 1:
            raise ValueError("the second")

    with pytest.raises(ValueError, match="the first"):
        map_all(work, list(range(300)))
    time.sleep(1)
    begun = len(list(tmp_path.iterdir()))
    assert begun < 150
    time.sleep(0.5)
    assert len(list(tmp_path.iterdir())) == begun


@pytest.mark.slow
@pytest.mark.parametrize("run", [map_all, lambda work, units: map_loaded(lambda _: work, units)])
def test_a_unit_whose_worker_is_lost_is_done_again(cluster, tmp_path, run):
    def work(unit):
        if unit == 2 and not (tmp_path / "lost").exists():
            (tmp_path / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return unit

    assert run(work, [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert (tmp_path / "lost").exists()


def test_a_plan_ends_beside_training_workers_and_says_nothing(ray_session, capfd, monkeypatch):
    """They take half of the CPUs of a small Ray, and keep them."""
    import ray

    monkeypatch.setattr(ray_data.logger, "propagate", False)  # another library may print it
    half = ray.cluster_resources()["CPU"] / 2
    group = ray.util.placement_group([{"CPU": half / 2}] * 2)
    ray.get(group.ready())
    capfd.readouterr()
    try:
        assert map_all(abs, [-1, -2, -3]) == [1, 2, 3]
    finally:
        ray.util.remove_placement_group(group)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("address", "cores", "seconds", "is_worth_it"),
    [
        (None, 1, MUCH, False),
        (None, 2, 1.9 * ray_data.START, False),
        (None, 2, 2.1 * ray_data.START, True),
        (None, 64, 1.1 * ray_data.START, True),
        ("10.0.0.1:6379", 1, 1.0, False),
        ("10.0.0.1:6379", 1, 60.0, True),
    ],
)
def test_a_plan_is_worth_a_start_that_takes_less_than_it_saves(
    monkeypatch, address, cores, seconds, is_worth_it
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert ray_data._is_worth_a_plan(seconds) == is_worth_it
