import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import pytest

from tasks.compute import ray_data
from tasks.compute.ray_data import map_units

MUCH = 1e6  # seconds


def map_all(function, units, *, seconds=MUCH, done=lambda unit: None):
    return map_units(function, units, seconds=seconds, done=done)


def refuse_one(unit):
    if unit == 1:
        raise ValueError("a.parquet is broken")
    return os.getpid()


def test_much_work_is_a_plan_and_its_results_come_in_order(ray_session):
    seen = []
    results = map_all(lambda unit: (2 * unit, os.getpid()), list(range(100)), done=seen.append)
    assert [twice for twice, _ in results] == list(range(0, 200, 2))
    assert os.getpid() not in {process for _, process in results}
    assert seen == list(range(100))


@pytest.mark.parametrize(
    ("units", "seconds", "cpus", "blocks"),
    [
        (3, 0.1, 4, 3),  # no more than units
        (1000, 0.1, 4, 16),  # some for each CPU
        (1000, 50.0, 4, 100),  # of half a second
        (1000, 50.0, 200, 800),
        (1000, MUCH, 4, 1000),
    ],
)
def test_blocks_are_worth_what_they_cost_and_keep_every_cpu_busy(units, seconds, cpus, blocks):
    assert ray_data._blocks(units, seconds, cpus) == blocks


def test_little_work_is_done_here_even_if_ray_runs(ray_session):
    seen = []
    results = map_all(lambda unit: (unit, os.getpid()), [3, 4], seconds=0.01, done=seen.append)
    assert results == [(3, os.getpid()), (4, os.getpid())]
    assert seen == [3, 4]


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


@pytest.mark.parametrize("seconds", [0.01, MUCH])
def test_an_error_of_a_unit_is_raised_as_it_is(ray_session, seconds):
    with pytest.raises(ValueError) as caught:
        map_all(refuse_one, [0, 1, 2], seconds=seconds)
    assert (type(caught.value), str(caught.value)) == (ValueError, "a.parquet is broken")
    with pytest.raises(FileNotFoundError):
        map_all(open, ["/nowhere"], seconds=seconds)


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


def test_a_unit_whose_worker_is_lost_is_done_again(ray_session, tmp_path):
    def work(unit):
        if unit == 2 and not (tmp_path / "lost").exists():
            (tmp_path / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return unit

    assert map_all(work, [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert (tmp_path / "lost").exists()


def test_a_plan_ends_beside_training_workers(ray_session):
    """They take half of the CPUs of a small Ray, and keep them."""
    import ray

    half = ray.cluster_resources()["CPU"] / 2
    group = ray.util.placement_group([{"CPU": half / 2}] * 2)
    ray.get(group.ready())
    try:
        assert map_all(abs, [-1, -2, -3]) == [1, 2, 3]
    finally:
        ray.util.remove_placement_group(group)


def test_ray_data_says_nothing_and_the_log_gets_its_statistics(
    ray_session, capfd, caplog, monkeypatch
):
    monkeypatch.setattr(ray_data.logger, "handlers", [caplog.handler])
    monkeypatch.setattr(ray_data.logger, "propagate", False)  # else Prefect may print it
    map_all(abs, [-1, 2])
    assert "2 tasks executed" in caplog.text
    output = capfd.readouterr()
    assert output.out == output.err == ""


@pytest.mark.parametrize(
    ("address", "cores", "seconds", "worth"),
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
    monkeypatch, address, cores, seconds, worth
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    assert ray_data._is_worth_a_plan(seconds) == worth
