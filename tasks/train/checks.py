"""Finds what a training would not follow, or what it requires but this machine lacks."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from models import user_code
from retrain.code import source_of
from retrain.hardware import find_compiler, gpu_capabilities
from retrain.project import Project
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.workload import Scale, Train, Workload
from tasks.train import notices, rehearsal
from tasks.train.loops import used_by

if TYPE_CHECKING:
    from models.network import Network

METRICS = ("train_loss", "val_loss", "val_accuracy")  # of the project's own loop
# Parameters for which the parts of the network have to be known.
OF_KNOWN_PARTS = ("lora", "freeze_epochs", "layer_decay")
FUNCTION = "train.function"


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that are found at once.

    Of a cluster, only Ray knows the machines.
    """
    family, settings, shape = described(workload)
    yield from family.pretrained_faults(settings, shape, project.root)
    yield from _unfit_for_the_loop(workload)
    yield from _unfit_for_each_other(workload)
    yield from _missing_modules(workload)
    if not ray_cluster.is_remote():
        yield from _lacking_on_this_machine(workload.train, workload.scale)


def check_slowly(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that take seconds to find, because libraries are imported for it."""
    family, settings, shape = described(workload)
    train, root = workload.train, project.root
    yield from family.library_faults(settings, shape, root)
    if train.lora and (network := without_memory(workload, project)):
        from tasks.train.network import lora_faults

        yield from lora_faults(network)
    yield from rehearsal.faults(workload.model, shape, root)
    for line in notices.of_libraries(workload, root / "requirements.lock"):
        console.say(line)
    if train.function:
        try:
            user_code.find(train.function, FUNCTION, root)
        except ValueError as error:
            yield str(error)


def described(workload: Workload) -> tuple[Any, Any, tuple[int, int, int]]:
    """The module of the network's family, its settings, and the shape of the images."""
    family, images = import_module(f"models.{workload.model.family}"), workload.images
    settings = family.Settings.model_validate(workload.model.model_dump(exclude={"family"}))
    return family, settings, (images.size, images.size, images.channels)


def without_memory(workload: Workload, project: Project) -> "Network | None":
    """The network as tensors that have shapes but no values; None where it cannot be had so."""
    family, settings, shape = described(workload)
    if not hasattr(family, "without_memory"):
        return None
    classes = len(workload.checks.labels or ()) or 2
    network: Network | None = family.without_memory(settings, shape, project.root, classes)
    return network


def _unfit_for_the_loop(workload: Workload) -> Iterator[str]:
    """Finds settings that the training loop would not follow."""
    train, metric = workload.train, workload.train.best.metric
    named = FUNCTION if train.function else "the project's own loop"
    for name in _changed(train, sorted(set(Train.model_fields) - used_by(train))):
        yield f"train.{name}: {named} does not use it."
    if train.function:
        if workload.images.storage == "source":
            yield f"images.storage: {named} needs prepared images, and not source."
        if workload.scale.strategy != "ddp":
            yield f"scale.strategy: {named} has ddp."
    elif metric not in METRICS:
        yield f"train.best.metric: {metric} is not one of {', '.join(METRICS)}."


def _unfit_for_each_other(workload: Workload) -> Iterator[str]:
    """Finds settings of the own loop that do not go with the network, or with each other."""
    train, scale = workload.train, workload.scale
    if workload.model.family == "custom":
        for name in _changed(train, OF_KNOWN_PARTS):
            yield f"train.{name}: it needs a network of transformers, with a known last layer."
    if train.lora:
        for name in _changed(train, ("freeze_epochs", "layer_decay")):
            yield f"train.{name}: train.lora does not train these layers; leave one of them out."
    if scale.strategy == "fsdp" and not train.function:
        if scale.workers < 2:
            yield "scale.strategy: fsdp divides a network among scale.workers; set it to 2 or more."
        for name in _changed(train, ("lora", "freeze_epochs", "ema")):
            yield f"train.{name}: it does not go with scale.strategy fsdp."


def _changed(train: Train, names: Iterable[str]) -> Iterator[str]:
    """Those of some parameters that are not at their default."""
    unset = Train()
    return (name for name in names if getattr(train, name) != getattr(unset, name))


def _missing_modules(workload: Workload) -> Iterator[str]:
    """Finds code of the user's that is named, but is not there."""
    factory = workload.model.model_dump().get("factory")
    for key, named in ((FUNCTION, workload.train.function), ("model.factory", factory)):
        if named and source_of(module := user_code.module_of(named)) is None:
            yield f"{key}: there is no module {module} in the project's folder."


def _lacking_on_this_machine(train: Train, scale: Scale) -> Iterator[str]:
    """Finds that GPUs, or the compiler that `torch.compile` calls, are missing."""
    gpus = len(gpu_capabilities())
    if scale.require_gpu:
        yield from lacking_gpus(scale, gpus)
    elif scale.backend == "nccl" and gpus < scale.workers:
        yield "scale.backend: nccl needs a GPU for each worker. Leave it out to train on CPUs."
    on_gpu = gpus >= max(scale.workers, 1)
    if train.compile is True and not find_compiler(on_gpu):
        language, variable, package = ("C", "CC", "gcc") if on_gpu else ("C++", "CXX", "g++")
        yield (
            f"train.compile: there is no {language} compiler. Install one, such as {package}, name "
            f"it in {variable}, or set train.compile=false."
        )


def lacking_gpus(scale: Scale, gpus: int) -> Iterator[str]:
    """Finds that there are not enough GPUs for a training that requires them."""
    wanted = max(scale.workers, 1)
    if gpus < wanted:
        yield (
            f"scale.require_gpu: {gpus} GPUs for {wanted} workers. Make scale.workers smaller, or "
            "leave require_gpu out to train on CPUs."
        )
