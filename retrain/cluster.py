"""Connecting to Ray: the cluster of `RAY_ADDRESS`, or one of our own on this machine."""

import logging
import os
import sys

# Training workers and Ray Data tasks share a small machine: with as many logical CPUs as cores,
# two workers would take them all and Ray Data would wait for ever.
MIN_LOGICAL_CPUS = 4


def connect() -> None:
    """Makes Ray ready to use, once per process."""
    import ray

    if ray.is_initialized():
        return
    quiet()
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        ray.init(
            address="local",  # and not one that somebody else runs on this machine
            num_cpus=max(os.cpu_count() or 1, MIN_LOGICAL_CPUS),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def is_remote() -> bool:
    """Whether work is for more machines than this one: those of the cluster of `RAY_ADDRESS`."""
    return bool(os.environ.get("RAY_ADDRESS"))


def quiet() -> None:
    """Keeps Ray's progress bars and hints off the console; its log records go on."""
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def disconnect() -> None:
    """Stops our own Ray, or leaves the cluster, if this process uses it."""
    if "ray" in sys.modules:
        import ray

        ray.shutdown()
