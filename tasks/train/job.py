"""Describes a training to the loop that runs it: its arguments, its best epoch, and its files.

On machines of a cluster that do not see the store of the one that starts it, each takes the images
whole from `store.remote` into a store of its own, once for all its workers. What they make goes
through the training's own place in the remote, `training/<key>`, which remains after a kill:

- `ray/`: the storage of Ray Train, with the checkpoints
- `start/`: the network whose weights it starts from
- `reports.json` and `best/`: what was reported, and the best checkpoint
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyarrow.fs import FileSystem, copy_files

import models
from retrain.disk import replacing
from retrain.errors import RemoteError, UsageError
from retrain.project import CODE, Project
from retrain.remote import Remote
from retrain.servers import ray_cluster
from retrain.store import Store
from retrain.workload import Best, EarlyStopping, Model, Scale, Train

if TYPE_CHECKING:
    from models.network import Network
    from tasks.data.shards import Prepared

FUNCTION = "train.function"  # the setting that names one of the user's
RAY = "ray"  # the name of a training for Ray Train
# Imported by its name, so that its code does not belong to a training without it.
STREAM = "tasks.train.stream"
# The first images that the network was given: `images`, uint8 (n, H, W, C), and `labels`, str (n,).
FIRST_BATCH = "first_batch.npz"
START = "start"
TOKEN = "token-"  # of the file in the scratch by which a machine knows that it sees it

Epoch = Mapping[str, Any]  # an entry of `history.json`


@dataclass(frozen=True)
class TrainingJob:
    """The arguments of a training loop.

    Workers see the same folders as the step that starts them, or take their own from
    `located`.

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
        remote: The URL of the store through which the machines of a cluster exchange files; None if
            they see the same folders.
        token: A file in the scratch, by which a machine knows that it sees the same folders.
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
    remote: str | None = None
    token: str = ""

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
    def at_once(self) -> int:
        """The images of a forward pass after the training."""
        return self.hyperparameters.micro_batch or self.batch_size // max(self.scale.workers, 1)

    @property
    def storage(self) -> str:
        """Where the reports are kept, which remain after a kill: a folder, or a URL."""
        if not self.remote:
            return str(self.scratch)
        return f"{self.remote.rstrip('/')}/training/{self.scratch.name}"

    def build(self, data: "Prepared") -> "Network":
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

    def save(self, network: "Network", data: "Prepared", temperature: float) -> None:
        """Writes the trained network to the output, as `models.save` does.

        Args:
            network: The network with the weights of the best epoch.
            data: The images that it was trained on.
            temperature: What its logits are divided by.
        """
        with chdir(self.root):
            complete = models.make(self.model.family, self.settings).complete(network)
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
        return not choice.metric.endswith(("loss", "error"))
    return choice.mode == "max"


def stops_early(history: Sequence[Epoch], choice: Best, rule: EarlyStopping | None) -> bool:
    """Whether a training ends now because it no longer gets better.

    Args:
        history: The epochs of the training so far.
        choice: The metric, and whether it should be large.
        rule: When a training ends; None if only after its last epoch.
    """
    if rule is None:
        return False
    best, waited = float("-inf"), 0
    for epoch in history:
        value = _signed(epoch, choice)
        if value > best + rule.min_delta:
            best, waited = value, 0
        else:
            waited += 1
    return waited >= rule.patience


def prepare(job: TrainingJob) -> TrainingJob:
    """Makes sure that the machines of the cluster come by the files of a training.

    Returns:
        The training for `located`.

    Raises:
        RemoteError: The remote does not answer.
        UsageError: A machine does not see the store, and there is no remote.
    """
    if not (blind := ray_cluster.blind_machines()):
        return job
    project = Project(job.root)
    if project.store_remote is None:
        raise UsageError(
            f"The machine {' and '.join(blind)} of the cluster of RAY_ADDRESS does not see the "
            f"store in {project.store}. Set RETRAIN_STORE to a folder that all machines see, or "
            "store.remote to an object store, such as s3://bucket/prefix."
        )
    remote = Remote(project.store_remote)
    for folder in [job.images, job.pulled] if job.streams else [job.images]:
        remote.send(folder.parent.name, folder.name, folder)
    job = replace(job, remote=remote.url)
    tokens = [*job.scratch.glob(f"{TOKEN}*")]
    if not tokens:  # what is in the remote is of another try
        forget(job)
        tokens = [job.scratch / f"{TOKEN}{uuid4().hex}"]
        tokens[0].touch()
    if job.start:
        _copy(job.start, f"{job.storage}/{START}")
    return replace(job, token=tokens[0].name)


@contextmanager
def on_this_machine(job: TrainingJob) -> Iterator[TrainingJob]:
    """A training as a worker has it: with folders of its machine, which go after the block.

    What is raised in the block leaves the folders there, for the next try.
    """
    here = located(job)
    yield here
    from ray.train import get_context

    if here is not job and get_context().get_local_rank() == 0:
        shutil.rmtree(here.scratch)


def located(job: TrainingJob) -> TrainingJob:
    """A training with folders of this machine; those of the step, if they are to be seen here."""
    if not job.remote or (job.scratch / job.token).exists():
        return job
    store = Store(ray_cluster.node_root(), Remote(job.remote))
    scratch = store.scratch("train", job.scratch.name)
    start = scratch / START
    if job.start and not start.exists():
        with store.lock("train", f"{job.scratch.name}-{START}"), replacing(start) as aside:
            _copy(f"{job.storage}/{START}", aside)
    return replace(
        job,
        start=start if job.start else None,
        root=CODE.parent,
        scratch=scratch,
        images=_fetched(store, job.images),
        pulled=_fetched(store, job.pulled) if job.streams else job.pulled,
    )


def _fetched(store: Store, folder: Path) -> Path:
    """The folder of an artifact in the store of this machine, which takes it whole, once.

    Raises:
        RemoteError: The remote has no such artifact, or a damaged one; the next try sends it anew.
    """
    step, key = folder.parent.name, folder.name
    if store.damage(step, key):
        with store.lock(step, key):
            if store.obtain(step, key) is None:
                raise RemoteError(f"The output of {step} could not be fetched from {store.remote}.")
    return store.folder(step, key)


def _copy(source: str | Path, target: str | Path) -> None:
    files, path = FileSystem.from_uri(str(target))
    files.create_dir(path)
    copy_files(str(source), path, destination_filesystem=files)


def forget(job: TrainingJob) -> None:
    """Removes what a training has in the remote."""
    if job.remote:
        files, path = FileSystem.from_uri(job.storage)
        with suppress(FileNotFoundError):
            files.delete_dir(path)
