import threading
import time

import pytest

from tasks.compute.prefetch import prefetch


def test_results_come_in_the_order_of_the_items_whichever_is_ready_first():
    def slow_first(number):
        time.sleep(0.05 if number % 4 == 0 else 0)
        return number**2

    assert list(prefetch(slow_first, range(20), results=4, threads=4)) == [n**2 for n in range(20)]


def test_as_many_results_are_made_ahead_as_may_be_in_memory_and_no_more():
    made = []
    results = prefetch(lambda number: made.append(number) or number, range(100), results=3)
    next(results)
    time.sleep(0.1)
    assert made == [0, 1, 2, 3]  # the one in use, and three more
    results.close()


def test_an_error_comes_where_its_result_would_have_come_and_no_thread_is_left():
    def fail_at_two(number):
        if number == 2:
            raise ValueError("two")
        return number

    before = threading.active_count()
    results = prefetch(fail_at_two, range(5), results=2, threads=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
    early = prefetch(abs, range(1000), results=2, threads=2)
    next(early)
    early.close()
    assert threading.active_count() == before
