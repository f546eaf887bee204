"""Private interfaces of libraries that the project cannot do without, all of them.

Each names the release that it was written for and where the library's makers discuss it;
`tests/retrain/test_patches.py` fails when a library changes what is used here. There are at most
five.
"""

import asyncio
import os


def let_forks_end() -> None:
    """Lets the processes that a step forks, such as those of a `DataLoader`, end without an error.

    Prefect 3.8 (`prefect._internal.concurrency.services`) sends logs and events in threads, which a
    fork does not have. It marks them as stopped there; but it waits for them at the end of the
    fork, too, and fails: the fork's exit code is 1 then, which PyTorch takes for the crash of a
    process that loads images, and ends the training.
    See https://github.com/PrefectHQ/prefect/issues/19112.
    """
    from prefect._internal.concurrency import services

    def end_services() -> None:
        for service in list(services._active_services):
            service._done_event = asyncio.Event()
            service._done_event.set()

    os.register_at_fork(after_in_child=end_services)
