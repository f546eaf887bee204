import os
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from tasks.compute import spread
from tasks.compute.spread import run_tasks

MUCH = 1e6  # seconds


def refuse_one(item):
    if item == 1:
        raise ValueError("a.parquet is broken")
    return os.getpid()


def test_much_work_is_spread_and_its_results_come_in_order(ray_session):
    results = run_tasks(lambda item: (2 * item, os.getpid()), list(range(20)), seconds=MUCH)
    assert [twice for twice, _ in results] == list(range(0, 40, 2))
    assert os.getpid() not in {process for _, process in results}


def test_little_work_is_done_here_even_if_ray_runs(ray_session):
    assert run_tasks(lambda item: (item, os.getpid()), [3, 4], seconds=0.01) == [
        (3, os.getpid()),
        (4, os.getpid()),
    ]


def test_little_work_starts_no_ray():
    program = (
        "import sys; from tasks.compute.spread import run_tasks; "
        "print(run_tasks(abs, [-1, 2], seconds=1.0), 'ray' in sys.modules)"
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
def test_a_value_error_in_a_task_is_raised_as_it_is(ray_session, seconds):
    with pytest.raises(ValueError, match=r"^a.parquet is broken$"):
        run_tasks(refuse_one, [0, 1, 2], seconds=seconds)


def test_a_second_core_is_worth_a_start_that_takes_less_than_it_saves(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(spread, "_is_connected", lambda: False)
    start = spread.RAY_START + spread.RAY_WORKERS + spread.RAY_TASKS
    for cores, seconds, worth in (
        (1, MUCH, False),
        (2, 1.9 * start, False),
        (2, 2.1 * start, True),
        (64, 1.1 * start, True),
    ):
        monkeypatch.setattr(joblib, "cpu_count", lambda cores=cores: cores)
        assert spread._is_worth_ray(seconds) == worth, (cores, seconds)


def test_a_cluster_gets_work_that_is_worth_the_connection_whatever_this_machine_has(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(joblib, "cpu_count", lambda: 1)
    assert not spread._is_worth_ray(1.0)
    assert spread._is_worth_ray(60.0)


def test_less_work_is_worth_a_ray_that_runs_and_less_still_one_that_was_used(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    least = []
    for connected, used in ((False, False), (True, False), (True, True)):
        monkeypatch.setattr(spread, "_is_connected", lambda connected=connected: connected)
        monkeypatch.setattr(spread, "_workers_started", used)
        least.append(next(tenth for tenth in range(1000) if spread._is_worth_ray(tenth / 10)))
    assert least == sorted(set(least), reverse=True)
