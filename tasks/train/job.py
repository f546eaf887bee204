"""A training: its arguments, which of its epochs is the best, and what would make it fail."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import models
from models import user_code
from models.user_code import FACTORY
from retrain.code import source_of
from retrain.hardware import find_compiler, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import DataVersion
from retrain.workload import PASSED_ON, Best, Model, Scale, Train, Workload
from tasks.data.shards import Prepared, open_prepared

if TYPE_CHECKING:
    from models.family import Family
    from models.network import Network

FUNCTION = "train.function"  # the setting that names one of the user's
# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# The first images that the network was given: `images`, uint8 (n, H, W, C), and `labels`, str (n,).
FIRST_BATCH = "first_batch.npz"
PROGRESS = "progress.json"  # of the newest progress, in the scratch folder
# Of the section `train`.
USED_BY_FUNCTION = {*PASSED_ON, "function", "arguments", "best", "init"}

# How the names of metrics end that should be small: losses, errors, and how far off a model is.
LOSSES = ("loss", "error", "nll", "brier", "ece", "perplexity", "mse", "rmse", "mae", "fpr", "fnr")

Epoch = Mapping[str, Any]  # an entry of `history.json`

TOLERANCE = 1e-4  # of a logit
# Of the project's own loop.
METRICS = ("train_loss", "val_loss", "val_accuracy", "val_macro_recall")


def used_by(hyperparameters: Train) -> set[str]:
    """The parameters of the section `train` that a training follows."""
    used_by_own_loop = set(Train.model_fields) - {"function", "arguments"}
    return USED_BY_FUNCTION if hyperparameters.function else used_by_own_loop


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of a training loop.

    Workers see the same folders as the step that starts them.

    Attributes:
        model: The settings of the network.
        hyperparameters: The settings of the training.
        scale: The settings of the workers and of their memory.
        images: The output of `preprocess`, or of `embed`.
        pulled: The output of `pull`, where `streams`.
        start: The folder of a saved network whose weights it starts from; None for new ones.
        root: The project's folder; relative paths in the settings start there.
        scratch: The folder of checkpoints and progress; remains after a kill.
        output: The folder of the trained network.
        streams: Whether the training images are not prepared: Ray Data decodes them meanwhile.
    """

    model: Model
    hyperparameters: Train
    scale: Scale
    images: Path
    pulled: Path
    start: Path | None
    root: Path
    scratch: Path
    output: Path
    streams: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the network's family."""
        return self.model.model_dump(exclude={"family"})

    @property
    def batch_size(self) -> int:
        """The images of a batch over all workers, of which each has as many."""
        workers = max(self.scale.workers, 1)
        return self.hyperparameters.batch_size // workers * workers

    @property
    def micro_batch(self) -> int:
        """The images of a worker that go through the network together."""
        return self.hyperparameters.micro_batch or self.batch_size // max(self.scale.workers, 1)

    def build(self, data: Prepared) -> "Network":
        """Makes the network as it is before the training; the seed of torch decides its weights.

        Args:
            data: The images that it will be trained on.

        Raises:
            ValueError: The network does not fit the images, or the weights that it starts from.
        """
        make = partial(models.build, self.model.family, self.settings, data.shape)
        with chdir(self.root):
            network = make(len(data.labels))
            if self.start:
                models.take_weights(network, self.start.absolute(), data.labels, make)
        return network

    def save(self, network: "Network", data: Prepared, temperature: float) -> None:
        """Writes the trained network to the output, as `models.save` does.

        Args:
            network: The network with the weights of the best epoch.
            data: The images that it was trained on.
            temperature: What its logits are divided by.
        """
        with chdir(self.root):
            complete = models.parse_settings(self.model.family, self.settings).complete(network)
        complete.temperature = temperature
        models.save(
            complete,
            self.output,
            family=self.model.family,
            settings=self.settings,
            labels=data.labels,
            images=data.images,
        )


def score(epoch: Epoch, choice: Best) -> tuple[float, float]:
    """The values by which epochs are compared; larger is better.

    Of two epochs with an equal metric, the one with the lower `val_loss` is better, if they have
    one.

    Args:
        epoch: An epoch that has the metric.
        choice: The metric, and whether it should be large.
    """
    return _signed(epoch, choice), -epoch.get("val_loss", 0.0)


def _signed(epoch: Epoch, choice: Best) -> float:
    """The metric, or its opposite, so that the larger is the better one."""
    value = float(epoch[choice.metric])
    return value if larger_is_better(choice) else -value


def larger_is_better(choice: Best) -> bool:
    """Whether the metric should be large."""
    if choice.mode == "auto":
        return not choice.metric.lower().endswith(LOSSES)
    return choice.mode == "max"


def stops_early(history: Sequence[Epoch], choice: Best, patience: int | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: The epochs of the training so far.
        choice: The metric, and whether it should be large.
        patience: After how many epochs without a better one; None if only after its last epoch.
    """
    if patience is None or not history:
        return False
    values = [_signed(epoch, choice) for epoch in history]
    return len(values) - 1 - values.index(max(values)) >= patience


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults that are found at once.

    Of the machines of a cluster, only Ray knows.
    """
    settings, _ = network_settings(workload)
    try:
        settings.find_version(project.root)
    except ValueError as error:
        yield str(error)
    rules = [*_conflicts(workload), *_missing_modules(workload)]
    if not (ray_cluster.is_remote() and workload.scale.workers):
        rules += _lacking_on_this_machine(workload.train, workload.scale)
    yield from (fault for is_broken, fault in rules if is_broken)


def try_settings(workload: Workload, project: Project, version: DataVersion) -> tuple[()]:
    """Checks the network, and finds the user's functions, in seconds.

    Raises:
        ValueError: They cannot be made or found, or do not go with the other settings.
    """
    settings, shape = network_settings(workload)
    train, root = workload.train, project.root
    settings.check_network(shape, root)
    if factory := workload.model.model_dump().get("factory"):
        user_code.find(factory, FACTORY, root)
    if train.function:
        user_code.find(train.function, FUNCTION, root)
    return ()


def network_settings(workload: Workload) -> tuple["Family", tuple[int, int, int]]:
    """The settings of the network, and the shape of the images."""
    model, images = workload.model, workload.images
    settings = models.parse_settings(model.family, model.model_dump(exclude={"family"}))
    return settings, (images.size, images.size, images.channels)


Rules = list[tuple[bool, str]]  # whether each is broken, and what is said then


def _conflicts(workload: Workload) -> Rules:
    """The settings that the training loop would not follow, or that do not go together."""
    train, images, scale = workload.train, workload.images, workload.scale
    changed, is_own = train.model_dump(exclude_defaults=True), train.function is None
    named = "the project's own loop" if is_own else FUNCTION
    unused = sorted(set(Train.model_fields) - used_by(train))
    is_divided = scale.strategy == "fsdp" and is_own
    return [
        *((name in changed, f"train.{name}: {named} does not use it.") for name in unused),
        (
            not is_own and images.storage == "source",
            f"images.storage: {named} needs prepared images, and not source.",
        ),
        (not is_own and scale.strategy != "ddp", f"scale.strategy: {named} has ddp."),
        (
            is_own and train.best.metric not in METRICS,
            f"train.best.metric: {train.best.metric} is not one of {', '.join(METRICS)}.",
        ),
        (
            workload.model.family == "custom" and train.freeze_epochs > 0,
            "train.freeze_epochs: it needs a network of transformers, with a known last layer.",
        ),
        (
            is_divided and scale.workers < 2,
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
                f"files of model.files): {user_code.describe_error(error)}."
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
