"""Finds what a training would not follow, or what it requires but this machine lacks."""

from collections.abc import Iterator
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
    rules = [*_unused(workload), *_unfit(workload), *_missing_modules(workload)]
    if not ray_cluster.is_remote():
        rules += _lacking_on_this_machine(workload.train, workload.scale)
    yield from (fault for is_broken, fault in rules if is_broken)


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


Rules = list[tuple[bool, str]]  # whether each is broken, and what is said then


def _unused(workload: Workload) -> Rules:
    """The settings that the training loop would not follow."""
    train = workload.train
    named = FUNCTION if train.function else "the project's own loop"
    unused = sorted(set(Train.model_fields) - used_by(train))
    return [
        *((name in _changed(train), f"train.{name}: {named} does not use it.") for name in unused),
        (
            train.function is not None and workload.images.storage == "source",
            f"images.storage: {named} needs prepared images, and not source.",
        ),
        (
            train.function is not None and workload.scale.strategy != "ddp",
            f"scale.strategy: {named} has ddp.",
        ),
        (
            train.function is None and train.best.metric not in METRICS,
            f"train.best.metric: {train.best.metric} is not one of {', '.join(METRICS)}.",
        ),
    ]


def _unfit(workload: Workload) -> Rules:
    """The settings of the own loop that do not go with the network, or with each other."""
    train, changed = workload.train, _changed(workload.train)
    is_custom = workload.model.family == "custom"
    is_divided = workload.scale.strategy == "fsdp" and train.function is None
    known = "it needs a network of transformers, with a known last layer."
    frozen = "train.lora does not train these layers; leave one of them out."
    return [
        *((is_custom and name in changed, f"train.{name}: {known}") for name in OF_KNOWN_PARTS),
        *(
            (train.lora is not None and name in changed, f"train.{name}: {frozen}")
            for name in ("freeze_epochs", "layer_decay")
        ),
        (
            is_divided and workload.scale.workers < 2,
            "scale.strategy: fsdp divides a network among scale.workers; set it to 2 or more.",
        ),
        *(
            (
                is_divided and name in changed,
                f"train.{name}: it does not go with scale.strategy fsdp.",
            )
            for name in ("lora", "freeze_epochs", "ema")
        ),
    ]


def _changed(train: Train) -> set[str]:
    """The parameters that are not at their default."""
    unset = Train()
    return {name for name in Train.model_fields if getattr(train, name) != getattr(unset, name)}


def _missing_modules(workload: Workload) -> Rules:
    """Code of the user's that is named, but is not there."""
    factory = workload.model.model_dump().get("factory")
    named = {FUNCTION: workload.train.function, "model.factory": factory}
    modules = {key: user_code.module_of(name) for key, name in named.items() if name}
    return [
        (
            source_of(module) is None,
            f"{key}: there is no module {module} in the project's folder.",
        )
        for key, module in modules.items()
    ]


def _lacking_on_this_machine(train: Train, scale: Scale) -> Rules:
    """What is missing: GPUs, or the compiler that `torch.compile` calls."""
    gpus = len(gpu_capabilities())
    on_gpu = gpus >= max(scale.workers, 1)
    language, variable, package = ("C", "CC", "gcc") if on_gpu else ("C++", "CXX", "g++")
    return [
        *((scale.require_gpu, fault) for fault in lacking_gpus(scale, gpus)),
        (
            not scale.require_gpu and scale.backend == "nccl" and gpus < scale.workers,
            "scale.backend: nccl needs a GPU for each worker. Leave it out to train on CPUs.",
        ),
        (
            train.compile is True and not find_compiler(on_gpu),
            f"train.compile: there is no {language} compiler. Install one, such as {package}, name "
            f"it in {variable}, or set train.compile=false.",
        ),
    ]


def lacking_gpus(scale: Scale, gpus: int) -> Iterator[str]:
    """Finds that there are not enough GPUs for a training that requires them."""
    wanted = max(scale.workers, 1)
    if gpus < wanted:
        yield (
            f"scale.require_gpu: {gpus} GPUs for {wanted} workers. Make scale.workers smaller, or "
            "leave require_gpu out to train on CPUs."
        )
