"""The training loops: the project's own, and the one around a function of the user's.

The loop is imported by its name, so that the code of the other one does not belong to the step's. A
loop has `work`, which runs on each worker; `callbacks` for Ray Train; and `finish`, which makes of
what the first worker returned what the step needs.
"""

from importlib import import_module
from typing import Any

import models
from models import user_code
from retrain.workload import PASSED_ON, Train, Workload

# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# Of the section `train`.
USED_BY_FUNCTION = {*PASSED_ON, "function", "arguments", "best", "calibrate", "init"}


def module_name(hyperparameters: Train) -> str:
    """The module of a training's loop."""
    return f"tasks.train.loops.{'function' if hyperparameters.function else 'torch'}"


def loop_of(hyperparameters: Train) -> Any:
    """A training's loop."""
    return import_module(module_name(hyperparameters))


def used_by(hyperparameters: Train) -> set[str]:
    """The parameters of the section `train` that a training's loop follows."""
    used_by_own_loop = set(Train.model_fields) - {"function", "arguments"}
    return USED_BY_FUNCTION if hyperparameters.function else used_by_own_loop


def modules_of_the_user(workload: Workload) -> list[str]:
    """The modules of the functions that a workload names."""
    _, *modules = models.modules_of(workload.model.family, workload.model.model_dump())
    if function := workload.train.function:
        modules.append(user_code.module_of(function))
    return modules
