"""Work that is done before its result is asked for, by threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetch(
    function: Callable[[T], R], items: Iterable[T], results: int, threads: int = 1
) -> Iterator[R]:
    """Calls a function on each item in threads, while the results before are being used.

    Args:
        function: Should spend its time in code that lets other threads run.
        items: In any number: they are taken as they are needed.
        results: How many there are at once at most, being made or ready, besides the one in use.
        threads: How many results are made at once.

    Yields:
        The results in the order of the items, whatever the order in which they are ready.
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
