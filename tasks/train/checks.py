"""Finds before a training what would fail in it."""

from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import models
from models import user_code
from models.user_code import FACTORY
from retrain.code import source_of
from retrain.hardware import find_compiler, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import DataVersion
from retrain.workload import Scale, Train, Workload
from tasks.data.shards import open_prepared
from tasks.train.job import FUNCTION, TrainingJob, used_by

if TYPE_CHECKING:
    from models.family import Family

TOLERANCE = 1e-4  # of a logit
# Of the project's own loop.
METRICS = ("train_loss", "val_loss", "val_accuracy", "val_macro_recall")


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that are found at once.

    Of the machines of a cluster, only Ray knows.
    """
    settings, _ = described(workload)
    try:
        settings.find_version(project.root)
    except ValueError as error:
        yield str(error)
    rules = [*_unused(workload), *_unfit(workload), *_missing_modules(workload)]
    if not (ray_cluster.is_remote() and workload.scale.workers):
        rules += _lacking_on_this_machine(workload.train, workload.scale)
    yield from (fault for is_broken, fault in rules if is_broken)


def try_settings(workload: Workload, project: Project, version: DataVersion) -> tuple[()]:
    """Checks the network, and finds the user's functions, in seconds.

    Raises:
        ValueError: They cannot be made or found, or do not go with the other settings.
    """
    settings, shape = described(workload)
    train, root = workload.train, project.root
    settings.check_network(shape, root)
    if factory := workload.model.model_dump().get("factory"):
        user_code.find(factory, FACTORY, root)
    if train.function:
        user_code.find(train.function, FUNCTION, root)
    return ()


def described(workload: Workload) -> tuple["Family", tuple[int, int, int]]:
    """The settings of the network, and the shape of the images."""
    model, images = workload.model, workload.images
    settings = models.make(model.family, model.model_dump(exclude={"family"}))
    return settings, (images.size, images.size, images.channels)


Rules = list[tuple[bool, str]]  # whether each is broken, and what is said then


def _unused(workload: Workload) -> Rules:
    """The settings that the training loop would not follow."""
    train = workload.train
    changed = train.model_dump(exclude_defaults=True)
    named = FUNCTION if train.function else "the project's own loop"
    unused = sorted(set(Train.model_fields) - used_by(train))
    return [
        *((name in changed, f"train.{name}: {named} does not use it.") for name in unused),
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
    train = workload.train
    changed = train.model_dump(exclude_defaults=True)
    is_custom = workload.model.family == "custom"
    is_divided = workload.scale.strategy == "fsdp" and train.function is None
    return [
        (
            is_custom and train.freeze_epochs > 0,
            "train.freeze_epochs: it needs a network of transformers, with a known last layer.",
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
            for name in ("freeze_epochs", "ema")
        ),
    ]


def _missing_modules(workload: Workload) -> Rules:
    """Code of the user's that is named, but is not there."""
    factory = workload.model.model_dump().get("factory")
    named = {FUNCTION: workload.train.function, FACTORY: factory}
    modules = {key: user_code.module_of(name) for key, name in named.items() if name}
    return [
        (
            source_of(module) is None,
            f"{key}: there is no module {module} in the project's folder.",
        )
        for key, module in modules.items()
    ]


def _lacking_on_this_machine(train: Train, scale: Scale) -> Rules:
    """The hardware and tools that are missing: GPUs, or the compiler that `torch.compile` calls."""
    gpus = len(gpu_capabilities())
    on_gpu = gpus >= max(scale.workers, 1)
    language, variable, package = ("C", "CC", "gcc") if on_gpu else ("C++", "CXX", "g++")
    return [
        lacking_gpus(scale, gpus),
        (
            train.compile and not find_compiler(on_gpu),
            f"train.compile: there is no {language} compiler. Install one, such as {package}, name "
            f"it in {variable}, or set train.compile=false.",
        ),
    ]


def lacking_gpus(scale: Scale, gpus: int) -> tuple[bool, str]:
    """Whether there are not enough GPUs for a training that requires them, and what is said."""
    workers = max(scale.workers, 1)
    return (
        scale.require_gpu and gpus < workers,
        f"scale.require_gpu: {gpus} GPUs for {workers} workers. Make scale.workers smaller, or "
        "leave require_gpu out to train on CPUs.",
    )


def try_network(job: TrainingJob) -> None:
    """Has a network of the user's learn, answer, be saved, be loaded elsewhere and answer again.

    The files of the project are not where it is loaded. So what would fail after the training, or
    where the model is served, fails before the training.

    Raises:
        ValueError: The network cannot do one of these, or its answers differ.
    """
    import torch

    data, named = open_prepared(job.images), f"the network of {job.settings['factory']}"
    shape = (2, *data.shape)
    images = torch.arange(prod(shape)).remainder(256).to(torch.uint8).reshape(shape)
    with torch.random.fork_rng(devices=[]), TemporaryDirectory() as folder:
        network, saved = job.build(data), Path(folder, "model")
        try:
            network.train()(images).sum().backward()
            answers = network.eval()(images).detach()
            replace(job, output=saved).save(network, data, 1.0)
            with chdir(folder):
                loaded = models.load(saved).module.eval()(images).detach()
        except Exception as error:
            raise ValueError(
                f"{FACTORY}: {named} has to learn from images of {data.shape}, to answer, to be "
                "saved, and to be loaded on another machine, where all weights are in what is "
                "saved (the function gets pretrained=False if it has such a parameter, and the "
                f"files of model.files): {user_code.said_by(error)}."
            ) from error
    if answers.shape != (2, len(data.labels)):
        raise ValueError(
            f"{FACTORY}: {named} returns {tuple(answers.shape)} for two images and "
            f"{len(data.labels)} classes, not (2, {len(data.labels)})."
        )
    if (difference := (loaded - answers).abs().max().item()) > TOLERANCE:
        raise ValueError(
            f"{FACTORY}: {named} gives other answers after it was saved and loaded, by up to "
            f"{difference:.2g}: its state_dict lacks something that they depend on."
        )
