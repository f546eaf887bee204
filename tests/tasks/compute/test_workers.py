"""Work with a network that each worker loads once: by actors, or in this process."""

import os
import signal
import threading

import pytest

from tasks.compute.workers import map_units

MUCH = 1e6  # seconds
places = pytest.mark.parametrize("seconds", [0.01, MUCH], ids=["here", "actors"])


def map_all(make, units, *, seconds=MUCH, done=lambda unit: None):
    return map_units(make, units, seconds=seconds, done=done)


class Loaded:
    """What a worker has loaded; it says who it is and what it was called with."""

    def __init__(self, device: str) -> None:
        self.device, self.calls = device, 0
        self.name = f"{os.getpid()} {id(self)}"

    def __call__(self, unit: int) -> tuple[int, str, str, int]:
        self.calls += 1
        return 2 * unit, self.name, self.device, os.getpid()


@places
def test_results_come_in_order_from_workers_that_load_once(ray_session, seconds):
    seen = []
    results = map_all(Loaded, list(range(60)), seconds=seconds, done=seen.append)
    assert [twice for twice, *_ in results] == list(range(0, 120, 2))
    assert seen == list(range(60))
    names = {name for _, name, *_ in results}
    processes = {process for *_, process in results}
    assert len(names) == len(processes)  # one network in each process
    assert (os.getpid() in processes) == (seconds < 1)
    assert {device for _, _, device, _ in results} == {"cpu"}


def test_a_unit_whose_worker_is_lost_is_done_again(ray_session, tmp_path):
    def make(device):
        def work(unit):
            if unit == 2 and not (tmp_path / "lost").exists():
                (tmp_path / "lost").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return unit

        return work

    assert map_all(make, [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert (tmp_path / "lost").exists()


def test_as_many_calls_at_once_as_there_are_cores(monkeypatch):
    import joblib

    monkeypatch.setattr(joblib, "cpu_count", lambda: 3)
    barrier = threading.Barrier(3, timeout=20)  # broken with fewer

    def make(device):
        return lambda unit: barrier.wait() >= 0

    assert map_all(make, list(range(6)), seconds=0.01) == [True] * 6
