import pytest

from tasks.train.launch import cpus_of_worker

EIGHT = {"CPU": 8.0}


@pytest.mark.parametrize(
    ("nodes", "workers", "on_gpus", "expected"),
    [
        ([{"CPU": 8.0}], 3, False, 1),
        ([EIGHT] * 3, 1, False, 4),  # not half of all 24
        ([EIGHT] * 3, 4, False, 2),
        ([{"CPU": 4.0}, {"CPU": 16.0}], 2, False, 4),
        ([{"CPU": 2.0}], 3, False, 1 / 3),
        # The CPUs of machines without GPUs are of no use there.
        ([{"CPU": 16.0, "GPU": 8.0}, {"CPU": 192.0}], 8, True, 1),
        ([{"CPU": 16.0, "GPU": 1.0}, EIGHT | {"GPU": 1.0}], 2, True, 4),
        ([], 2, False, 1),
    ],
)
def test_a_worker_asks_for_what_a_machine_has(nodes, workers, on_gpus, expected):
    assert cpus_of_worker(nodes, workers, on_gpus) == pytest.approx(expected)
