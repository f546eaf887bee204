"""Lets the processes that a step forks, such as those of a `DataLoader`, end without an error.

Once it is imported, it does so in each fork of this process.

Prefect sends logs and events in threads, which a fork does not have. Prefect marks them as stopped
there; but it waits for them at the end of the fork, too, and fails: the fork's exit code is 1 then,
which PyTorch takes for the crash of a process that loads images, and ends the training.
"""

import asyncio
import os

from prefect._internal.concurrency import services


def _end_services() -> None:
    """Marks Prefect's services as ended: nothing has to be waited for."""
    for service in list(services._active_services):
        service._done_event = asyncio.Event()
        service._done_event.set()


os.register_at_fork(after_in_child=_end_services)
