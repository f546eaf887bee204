"""Calls a function in threads, before its results are needed."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetch(
    function: Callable[[T], R], items: Iterable[T], results: int, threads: int = 1
) -> Generator[R]:
    """Calls a function on each item in threads, while earlier results are used.

    Args:
        function: Should spend its time in code that releases the GIL.
        items: Any number; each is taken when it is needed.
        results: How many at most are in work or ready, besides the one in use.
        threads: How many calls run at once.

    Yields:
        The results in the order of the items, whichever is ready first.
    """
    items = iter(items)
    with ThreadPoolExecutor(threads, "ahead") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in islice(items, results):
                waiting.append(pool.submit(function, item))
            while waiting:
                result = waiting.popleft().result()
                for item in islice(items, 1):
                    waiting.append(pool.submit(function, item))
                yield result
                del result  # it may be large, and the next one is about to be made
        finally:
            for future in waiting:
                future.cancel()
