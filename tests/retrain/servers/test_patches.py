"""The private interfaces of libraries are still what `patches.py` takes them for."""

import ast
import inspect
from pathlib import Path
from weakref import WeakSet

from retrain.servers import patches

MOST = 5


def test_there_are_few_and_each_names_where_it_is_discussed():
    tree = ast.parse(Path(patches.__file__).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) <= MOST
    for function in functions:
        assert "https://github.com/" in ast.get_docstring(function), function.name


def test_prefect_still_waits_in_a_fork_for_what_it_has_reset():
    """`tests/tasks/train` trains with forks. Once `reset_for_fork` is enough, the patch can go."""
    from prefect._internal.concurrency import services

    assert isinstance(services._active_services, WeakSet)
    base = services._QueueServiceBase
    assert "self._done_event = None" in inspect.getsource(base.reset_for_fork)
    assert "assert self._done_event is not None" in inspect.getsource(base._drain)


def test_ray_train_still_has_the_helper_that_needs_a_dashboard():
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(print)
    names = [type(each).__name__ for each in trainer._create_default_callbacks()]
    assert "PlacementGroupCleanerCallback" in names
    patches.leave_out_what_needs_a_dashboard(trainer)
    kept = [type(each).__name__ for each in trainer._create_default_callbacks()]
    assert kept == [name for name in names if name != "PlacementGroupCleanerCallback"]


def test_ray_train_still_takes_the_same_errors_for_failures_of_the_start():
    from ray.train import RunConfig
    from ray.train.v2._internal import exceptions
    from ray.train.v2._internal.execution.failure_handling import default

    kinds = [*default.RETRYABLE_CONTROLLER_ERRORS]
    assert kinds == [
        exceptions.WorkerGroupStartupFailedError,
        exceptions.WorkerGroupStartupTimeoutError,
    ]
    errors = [exceptions.WorkerGroupStartupFailedError("gone")]
    errors += [exceptions.WorkerGroupStartupTimeoutError(2), ValueError("another")]
    assert [patches.found_no_place(error) for error in errors] == [False, True, False]
    assert RunConfig().failure_config.controller_failure_limit == -1  # for ever
