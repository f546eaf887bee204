"""All private interfaces of libraries that the project uses, because it cannot do without them.

Each names the release that it was written for and where the library's makers discuss it;
`tests/retrain/servers/test_patches.py` fails when a library changes what is used here. There are
at most five.
"""

import asyncio
import os
from typing import Any


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


def leave_out_what_needs_a_dashboard(trainer: Any) -> None:
    """Has a trainer of Ray Train start without the helper that asks the dashboard of Ray.

    Ray Train 2.60 (`PlacementGroupCleanerCallback`) has a process that asks the dashboard, again
    and again, whether the controller of the training is still alive. Without a dashboard each
    question takes ten seconds, and the end of the training waits for it: 20 s for a training of no
    steps, 9 s without the helper. Nor does it find then what it is to remove: the CPUs that a
    killed controller had reserved. They are free again when the run ends.
    See https://github.com/ray-project/ray/pull/62516.
    """
    defaults = trainer._create_default_callbacks

    def without_the_helper() -> list[Any]:
        name = "PlacementGroupCleanerCallback"
        return [callback for callback in defaults() if type(callback).__name__ != name]

    trainer._create_default_callbacks = without_the_helper


def found_no_place(failure: BaseException) -> bool:
    """Whether Ray Train could not start its workers because they found no place for a minute.

    Ray Train 2.60 by itself asks for the same resources again, for ever, even if the machines that
    are left have fewer. It names the error only in a private module.
    See https://github.com/ray-project/ray/pull/54833.

    Args:
        failure: The `controller_failure` of a `ControllerError`.
    """
    from ray.train.v2._internal import exceptions

    return isinstance(failure, exceptions.WorkerGroupStartupTimeoutError)
