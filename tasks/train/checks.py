"""Finds what a training would not follow, or what it requires but this machine lacks."""

from collections.abc import Iterable, Iterator
from contextlib import chdir
from importlib import import_module
from typing import Any

from models import user_code
from retrain.code import source_of
from retrain.hardware import find_compiler, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.workload import Model, Scale, Train, Workload
from tasks.train import adapters, notices, rehearsal
from tasks.train.launch import lacking_gpus
from tasks.train.loop import loop_of

# Parameters for which the parts of the network have to be known.
OF_KNOWN_PARTS = ("lora", "freeze_epochs", "layer_decay")


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that are found at once.

    Of a cluster, only Ray knows the machines.
    """
    family, settings = _family(workload.model)
    yield from family.pretrained_faults(settings, _shape(workload), project.root)
    yield from _unfit_for_the_loop(workload)
    yield from _missing_modules(workload)
    if not ray_cluster.is_remote():
        yield from _lacking_on_this_machine(workload.train, workload.scale)


def check_slowly(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that take seconds to find, because libraries are imported for it."""
    family, settings = _family(workload.model)
    shape, root = _shape(workload), project.root
    yield from family.library_faults(settings, shape, root)
    if workload.train.lora and hasattr(family, "without_memory"):
        network = family.without_memory(settings, shape, root)
        if network is not None:
            yield from adapters.faults(network)
    yield from rehearsal.faults(workload.model, shape, root)
    notices.say_what_is_not_locked(workload, root / "requirements.lock")
    yield from loop_of(workload.train).slow_faults(workload.train, root)
    if workload.scale.strategy == "fsdp":
        named = workload.model.family, settings.model_dump()
        with chdir(root):
            yield from [*import_module("tasks.train.sharding").faults(*named, shape)]


def _unfit_for_the_loop(workload: Workload) -> Iterator[str]:
    """Finds settings that the training loop would not follow."""
    train, scale, loop = workload.train, workload.scale, loop_of(workload.train)
    if workload.images.storage == "source" and "stream" not in loop.INGESTS:
        yield f"images.storage: {loop.NAME} needs prepared images, and not source."
    if scale.strategy not in loop.STRATEGIES:
        yield f"scale.strategy: {loop.NAME} has {' and '.join(loop.STRATEGIES)}."
    for name in _changed(train, sorted(set(Train.model_fields) - set(loop.USED))):
        yield f"train.{name}: {loop.NAME} does not use it."
    if workload.model.family == "custom":
        for name in _changed(train, OF_KNOWN_PARTS):
            yield f"train.{name}: it needs a network of transformers, with a known last layer."
    if loop.METRICS and train.best.metric not in loop.METRICS:
        yield f"train.best.metric: {train.best.metric} is not one of {', '.join(loop.METRICS)}."
    yield from loop.faults(workload)


def _changed(train: Train, names: Iterable[str]) -> Iterator[str]:
    """Those of some parameters that are not at their default."""
    unset = Train()
    return (name for name in names if getattr(train, name) != getattr(unset, name))


def _missing_modules(workload: Workload) -> Iterator[str]:
    """Finds code of the user's that is named, but is not there."""
    factory = workload.model.model_dump().get("factory")
    for key, named in (("train.function", workload.train.function), ("model.factory", factory)):
        if named and source_of(module := user_code.module_of(named)) is None:
            yield f"{key}: there is no module {module} in the project's folder."


def _family(model: Model) -> tuple[Any, Any]:
    """The module of a model's family, and the model's settings as the family declares them."""
    family = import_module(f"models.{model.family}")
    return family, family.Settings.model_validate(model.model_dump(exclude={"family"}))


def _shape(workload: Workload) -> tuple[int, int, int]:
    return workload.images.size, workload.images.size, workload.images.channels


def _lacking_on_this_machine(train: Train, scale: Scale) -> Iterator[str]:
    """Finds that GPUs, or the compiler that `torch.compile` calls, are missing."""
    gpus, wanted = len(gpu_capabilities()), max(scale.workers, 1)
    if scale.require_gpu:
        yield from lacking_gpus(scale, gpus)
    elif scale.backend == "nccl" and gpus < scale.workers:
        yield "scale.backend: nccl needs a GPU for each worker. Leave it out to train on CPUs."
    on_gpu = gpus >= wanted
    if train.compile is True and not find_compiler(on_gpu):
        language, variable, package = ("C", "CC", "gcc") if on_gpu else ("C++", "CXX", "g++")
        yield (
            f"train.compile: there is no {language} compiler. Install one, such as {package}, name "
            f"it in {variable}, or set train.compile=false."
        )
