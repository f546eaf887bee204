"""Trains the network with Ray Train, in this process or on workers, and tracks it in MLflow.

- `loops/` has the training loops, of which one is imported, and `job.py` their arguments
- `sampler.py`, `balance.py` and `ingest.py` bring the images; `augment.py` changes them, with
  `transforms.py` and `mixing.py`
- `optimizer.py`, `averaging.py`, `device.py` and `collective.py` train the network
- `validation.py` and `selection.py` find the best epoch
- `checkpoint.py` and `progress.py` keep and show how far it is, `interrupt.py` ends it at Ctrl-C
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from models import processing, user_code
from retrain import tracking
from retrain.atomic import write_json
from retrain.code import libraries_of, names_in, source_of
from retrain.errors import PrunedError, UsageError
from retrain.hardware import find_compiler, gpu_capabilities
from retrain.project import Project
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.step import Chosen, Facts, Step, Workspace
from retrain.store import Artifact
from retrain.workload import Model, Scale, Train, Workload, flatten
from tasks.compute.placement import cpus_of_worker, telling_that_it_waits
from tasks.data.embeddings import prepared_by
from tasks.data.raw_dataset import READERS
from tasks.data.shards import SOURCE_MODULE, open_prepared
from tasks.train import adapters, rehearsal
from tasks.train.augment import TRANSFORMS, modules_for
from tasks.train.estimate import estimate, forecast, notice
from tasks.train.ingest import DATALOADER, STREAM
from tasks.train.interrupt import asking_at_ctrl_c
from tasks.train.job import TrainingJob
from tasks.train.progress import FILE, followed
from tasks.train.selection import of_equals, stops_early

if TYPE_CHECKING:
    from ray.train import ScalingConfig

    from tasks.data.champion import Start

logger = logging.getLogger(__name__)

# Ray Train's variable: how long a worker waits for the others in `ray.train.report`.
REPORT_SECONDS = "RAY_TRAIN_COLLECTIVE_TIMEOUT_S"

MODEL = "model"
OWN_LOOP = "tasks.train.loops.torch"
TRACKED = "mlflow.json"  # the training's run in MLflow
VALIDATION = ("val_accuracy", "val_loss")  # metrics of the best epoch that are facts
SCALE = (
    "workers",
    "strategy",
    "backend",
    "threads",
    "ingest",
    "memory_gb",
)  # the settings of the section that change the network


def train(
    model: Model,
    hyperparameters: Train,
    scale: Scale,
    images: Artifact,
    pulled: Artifact,
    start: "Start",
    workspace: Workspace,
) -> Facts:
    """Trains a network; continues from the last checkpoint of an interrupted training.

    Writes `model/` (as `models.save` does; of the best epoch), `report/history.json` (a list with
    an entry for each epoch) and `report/mlflow.json`.

    Args:
        model: Which network.
        hyperparameters: How it is trained.
        scale: On how many workers.
        images: The output of `preprocess`, or of `embed`.
        pulled: That of `pull`; only images that are not prepared are read there.
        start: Which weights it starts from.
        workspace: Its scratch holds the checkpoints.

    Returns:
        `weights` (SHA-256 of the weights' file), `parameters` (how many), `numerics` (`precision`,
        `attention`, whether `compiled`, and CPU `threads`), `batch_size` (over all workers, as it
        was), `best_epoch`, `of_equals` (why that one, if others have the same metric), `start`
        (SHA-256 of the weights it started from, if not new), and the metric by which it is the
        best, with `val_accuracy` and `val_loss` where the loop has them.

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The parameters do not go together or with the images, or training diverged.
        ConnectionError: MLflow cannot be reached.
        TimeoutError: Workers waited longer for another one than `scale.timeout_seconds`.
        ray.train.TrainingFailedError: More workers were lost than `scale.max_failures`.
    """
    assert scale.threads != "auto", "retrain.params decides it"
    settings = model.model_dump(exclude={"family"})
    job = TrainingJob(
        family=model.family,
        settings=settings,
        hyperparameters=hyperparameters,
        images=images.folder,
        scratch=workspace.scratch,
        output=workspace.folder / MODEL,
        start=start.model,
        pulled=pulled.folder,
        root=workspace.project.root,
        checkpoint_seconds=scale.checkpoint_seconds,
        keep_checkpoints=scale.keep_checkpoints,
        strategy=scale.strategy,
        ingest="stream" if images.facts["storage"] == "source" else scale.ingest,
        memory_gb=scale.memory_gb,
        data_cpus=scale.data_cpus,
        threads=scale.threads,
        bounds=workspace.trial.bounds if workspace.trial else {},
    )
    if start.registered:
        console.say(f"train starts from the weights of version {start.registered.version.version}.")
    used = hyperparameters.model_dump(include=set(import_module(_loop(hyperparameters)).USED))
    params = flatten({"model": model.model_dump(), "train": used})
    params |= {f"scale.{name}": getattr(scale, name) for name in SCALE}
    workers = max(scale.workers, 1)
    batch_size = hyperparameters.batch_size // workers * workers
    if batch_size < hyperparameters.batch_size:
        console.say(
            f"train takes batches of {batch_size} images: {hyperparameters.batch_size} cannot be "
            f"divided among {workers} workers."
        )
    _say_what_it_takes(model, hyperparameters, scale, images, workspace.project)
    _say_how_images_differ(settings, images, workspace.project)
    if hyperparameters.augment.crop and job.ingest != "stream":
        _say_what_is_enlarged(hyperparameters.augment.crop, images)
    with _tracked(workspace, params, images.digest) as run:
        log = partial(tracking.log_epochs, workspace.project, run.run_id)
        try:
            with console.training_progress() as show, followed(job.scratch / FILE, show, log):
                result = _launch(job, scale)
        except PrunedError as pruned:
            log(pruned.history)
            raise
        history = result["history"]
        rule, choice = hyperparameters.early_stopping, hyperparameters.best
        if rule and stops_early(history, choice, rule) and len(history) != hyperparameters.epochs:
            console.say(
                f"train ended early: {choice.metric} was no better in the last {rule.patience} of "
                f"{len(history)} evaluations."
            )
        write_json(workspace.report / "history.json", history)
        write_json(workspace.report / TRACKED, asdict(run))
        tracking.log_artifacts(workspace.project, run.run_id, workspace.report, "train")
    best = result["best"]
    chosen = hyperparameters.best.metric
    metrics = {name: best[name] for name in sorted({chosen, *VALIDATION} & best.keys())}
    equals = of_equals(history, best, hyperparameters.best)
    weights = (job.output / models.WEIGHTS).read_bytes()
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "parameters": result["parameters"],
        "numerics": result["numerics"],
        "batch_size": batch_size,
        "best_epoch": best["epoch"],
        **({"of_equals": equals} if equals else {}),
        **({"start": start.weights} if start.registered else {}),
        **metrics,
    }


def _say_what_it_takes(
    model: Model, hyperparameters: Train, scale: Scale, images: Artifact, project: Project
) -> None:
    if ray_cluster.is_remote():
        return
    data = open_prepared(images.folder)
    found = estimate(model, hyperparameters, scale, data.shape, len(data.labels), project.root)
    if found and (line := notice(found, len(data.split("train")), hyperparameters.epochs)):
        console.say(line)


def _say_how_images_differ(settings: dict[str, Any], images: Artifact, project: Project) -> None:
    """Says what a pretrained network's image processor has that the workload has not."""
    if name := settings.get("pretrained"):
        with chdir(project.root):
            version, prepared = settings.get("pretrained_version"), open_prepared(images.folder)
            if line := processing.difference(name, version, prepared.images):
                console.say(line)


def _say_what_is_enlarged(crop: float, images: Artifact) -> None:
    """Says that the smallest parts of prepared images have less pixels than the network takes."""
    prepared = open_prepared(images.folder)
    stored, size = prepared.split("train").images.shape[0], prepared.images["size"]
    side = round(stored * crop**0.5)
    if side < size:
        console.say(
            f"train.augment.crop {crop:g} enlarges parts of {side} to {size} pixels: images are "
            f"prepared with {stored}. If yours are larger, images.margin="
            f"{math.ceil(size / crop**0.5) - size} or images.storage=source keeps their detail."
        )


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults of pretrained weights, and what the training requires but this machine lacks.

    Only Ray knows the machines of a cluster.
    """
    family, settings = _family(workload.model)
    images = workload.images
    shape = (images.size, images.size, images.channels)
    yield from family.pretrained_faults(settings, shape, project.root)
    yield from _unfit_for_the_loop(workload)
    yield from _missing_modules(workload)
    if ray_cluster.is_remote():
        return
    if workload.scale.require_gpu:
        yield from _lacking_gpus(workload.scale, len(gpu_capabilities()))
    elif workload.scale.backend == "nccl" and len(gpu_capabilities()) < workload.scale.workers:
        yield "scale.backend: nccl needs a GPU for each worker. Leave it out to train on CPUs."
    if workload.train.compile is True:
        yield from _lacking_compiler(workload.scale)


def check_slowly(workload: Workload, project: Project) -> Iterator[str]:
    """Finds faults of the network that only its library finds."""
    family, settings = _family(workload.model)
    images = workload.images
    shape = (images.size, images.size, images.channels)
    yield from family.library_faults(settings, shape, project.root)
    if workload.train.lora and hasattr(family, "without_memory"):
        network = family.without_memory(settings, shape, project.root)
        if network is not None:
            yield from adapters.faults(network)
    yield from rehearsal.faults(workload.model, shape, project.root)
    _say_what_is_not_locked(workload, project.root / "requirements.lock")
    yield from import_module(_loop(workload.train)).slow_faults(workload.train, project.root)
    if workload.scale.strategy == "fsdp":
        named = workload.model.family, settings.model_dump()
        with chdir(project.root):
            yield from [*import_module("tasks.train.sharding").faults(*named, shape)]


def _say_what_is_not_locked(workload: Workload, lock: Path) -> None:
    """Names the libraries of the user's modules that other machines would not have."""
    if not lock.exists():
        return
    known = names_in(lock)
    for name in libraries_of(_modules_of_the_user(workload)):
        if name not in known:
            console.say(
                f"{name} {installed(name)} is not in requirements.lock: add it, so that it is "
                "installed wherever this runs."
            )


def _modules_of_the_user(workload: Workload) -> list[str]:
    """The modules of the functions that the workload names."""
    _, *modules = models.modules_of(workload.model.family, workload.model.model_dump())
    if function := workload.train.function:
        modules.append(user_code.module_of(function))
    return modules


def _loop(hyperparameters: Train) -> str:
    """The module of the training loop.

    It is imported by its name, so that the code of another loop does not belong to the step's.
    """
    name = "function" if hyperparameters.function else hyperparameters.loop
    return f"tasks.train.loops.{name}"


def _unfit_for_the_loop(workload: Workload) -> Iterator[str]:
    """Finds settings that the training loop would not follow."""
    train, loop = workload.train, import_module(_loop(workload.train))
    if workload.images.storage == "source" and "stream" not in loop.INGESTS:
        yield f"images.storage: {loop.NAME} needs prepared images, and not source."
    if workload.scale.strategy not in loop.STRATEGIES:
        yield f"scale.strategy: {loop.NAME} has {' and '.join(loop.STRATEGIES)}."
    unset = Train()
    for name in sorted(set(Train.model_fields) - set(loop.USED)):
        if getattr(train, name) != getattr(unset, name):
            yield f"train.{name}: {loop.NAME} does not use it."
    if workload.model.family == "custom":
        for name in ("lora", "freeze_epochs", "layer_decay"):
            if getattr(train, name) != getattr(unset, name):
                yield f"train.{name}: it needs a network of transformers, with a known last layer."
    if loop.METRICS and train.best.metric not in loop.METRICS:
        yield f"train.best.metric: {train.best.metric} is not one of {', '.join(loop.METRICS)}."
    yield from loop.faults(workload)


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


def _lacking_compiler(scale: Scale) -> Iterator[str]:
    """Finds that the compiler is missing that `torch.compile` calls for this training."""
    on_gpu = len(gpu_capabilities()) >= max(scale.workers, 1)
    language, variable = ("C", "CC") if on_gpu else ("C++", "CXX")
    if not find_compiler(on_gpu):
        yield (
            f"train.compile: there is no {language} compiler. Install one, such as "
            f"{'gcc' if on_gpu else 'g++'}, name it in {variable}, or set train.compile=false."
        )


def _lacking_gpus(scale: Scale, gpus: int) -> Iterator[str]:
    wanted = max(scale.workers, 1)
    if gpus < wanted:
        yield (
            f"scale.require_gpu: {gpus} GPUs for {wanted} workers. Make scale.workers smaller, or "
            "leave require_gpu out to train on CPUs."
        )


@contextmanager
def _tracked(
    workspace: Workspace, params: dict[str, Any], images: str
) -> Iterator[tracking.TrackedRun]:
    """Starts or continues the training's run in MLflow, and ends it as it ended."""
    project, memory = workspace.project, workspace.scratch / TRACKED
    before = json.loads(memory.read_text())["run_id"] if memory.exists() else None
    run = tracking.start_run(
        project,
        workspace.workload,
        workspace.key,
        params,
        images,
        continued=before,
        again=workspace.anew,
        parent=workspace.trial.parent if workspace.trial else None,
    )
    write_json(memory, asdict(run))
    try:
        yield run
    except BaseException as ended:
        try:
            status = "KILLED" if isinstance(ended, PrunedError) else "FAILED"
            tracking.end_run(project, run.run_id, status)
        except Exception as error:  # must not hide why the training failed
            logger.warning("MLflow could not record that the training failed: %s", error)
        raise
    tracking.end_run(project, run.run_id, "FINISHED")


def _launch(job: TrainingJob, scale: Scale) -> dict[str, Any]:
    """Runs the loop on all workers.

    Returns:
        What the first of them returned.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
        ValueError: As the loop does.
        TimeoutError: Workers waited too long for another one.
    """
    from ray.train import FailureConfig, RunConfig, TrainingFailedError
    from ray.train.torch import TorchConfig

    from tasks.train.trainer import ASKED, Trainer
    from tasks.train.verdict import StopAtVerdict, verdict, waited

    streamed = job.ingest == "stream"
    if scale.workers or streamed:
        ray_cluster.connect()
    if scale.workers and ray_cluster.is_remote():
        ray_cluster.forget_others(Project(job.root).state)
    os.environ[REPORT_SECONDS] = str(scale.timeout_seconds)
    # Ray Train identifies a run by its name and does nothing if that run has ended. Its files
    # are not needed: the loop has its own checkpoints.
    storage = job.scratch / "ray"
    shutil.rmtree(storage, ignore_errors=True)
    storage.mkdir()
    scaling = _scaling(scale)
    ingest: dict[str, Any] = {}
    if streamed:
        ingest = import_module(STREAM).of_trainer(job, scaling)
    trainer = Trainer(
        import_module(_loop(job.hyperparameters)).work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(
            backend=None if scale.backend == "auto" else scale.backend,
            timeout_s=scale.timeout_seconds,
        ),
        scaling_config=scaling,
        run_config=RunConfig(
            name="train",
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=scale.max_failures),
            callbacks=[StopAtVerdict()],
        ),
        **ingest,
    )
    waiting = telling_that_it_waits(
        storage / ASKED, scaling.num_workers, scaling.resources_per_worker or {}
    )
    try:
        listens = _loop(job.hyperparameters) == OWN_LOOP
        with asking_at_ctrl_c(job.scratch, listens=listens), waiting:
            return dict(trainer.fit().return_value)
    except TrainingFailedError as error:
        if late := waited(error, scale.timeout_seconds):
            raise late from error
        raise verdict(error) or error from None


def _scaling(scale: Scale) -> "ScalingConfig":
    """The resources of each worker: a GPU if there are enough, and a share of half of the CPUs.

    Raises:
        UsageError: There are not enough GPUs, and they are required.
    """
    from ray.train import ScalingConfig

    workers = scale.workers
    if workers:
        nodes = [each["Resources"] for each in ray_cluster.training_nodes()]
        gpus = int(sum(each.get("GPU", 0) for each in nodes))
    else:
        import torch

        gpus = torch.cuda.device_count()
    if scale.require_gpu and (lacking := [*_lacking_gpus(scale, gpus)]):
        raise UsageError(*lacking)
    if not workers:
        return ScalingConfig(num_workers=0)
    use_gpu = gpus >= workers
    if gpus and not use_gpu:
        console.say(f"Trains on CPUs: there are {gpus} GPUs for {workers} workers.")
    return ScalingConfig(
        num_workers=workers,
        use_gpu=use_gpu,
        resources_per_worker={
            "CPU": cpus_of_worker(nodes, workers, use_gpu),
            "GPU": int(use_gpu),
        },
        # GPUs on one node communicate faster; workers on CPUs are faster on separate nodes.
        placement_strategy="PACK" if use_gpu else "SPREAD",
    )


def _chosen(workload: Workload, images: Artifact, pulled: Artifact, start: "Start") -> Chosen:
    users = _modules_of_the_user(workload)
    modules = (_loop(workload.train), f"models.{workload.model.family}", *users)
    if workload.scale.ingest == "dataloader":
        modules += (DATALOADER,)
    libraries = libraries_of(users)
    modules += (changes := modules_for(workload.train.augment))
    if TRANSFORMS in changes:
        libraries += ("kornia",)
    if workload.train.lora:
        libraries += ("peft",)
    if workload.train.loop == "huggingface":
        libraries += ("accelerate",)
    if images.facts["storage"] == "source":
        modules += (STREAM, SOURCE_MODULE, READERS[pulled.facts["format"]])
        libraries += ("pillow", "pyarrow", "simplejpeg")
    return Chosen(modules, libraries)


STEP = Step(
    "train",
    train,
    reads=("model", "train", *(f"scale.{name}" for name in SCALE)),
    inputs=lambda workload: (prepared_by(workload), "pull", "start"),
    looked_up=("pull",),
    libraries=("numpy", "safetensors", "torch", "transformers"),
    chosen=_chosen,
    reports_with=(
        "models.processing",
        "tasks.compute.placement",
        "tasks.train.estimate",
        "tasks.train.interrupt",
        "tasks.train.progress",
        "tasks.train.rehearsal",
    ),
    check=check,
    check_slowly=check_slowly,
    forecast=forecast,
    hours=7 * 24,
)
