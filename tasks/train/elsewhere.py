"""Trains on machines of a cluster that do not see the store of the one that starts it.

Each machine takes the images whole from `store.remote` into a store of its own, once for all its
workers. What they make goes through the training's own place in the remote, `training/<key>`,
which remains after a kill:

- `ray/`: the storage of Ray Train, with the checkpoints
- `start/`: the network whose weights it starts from
- `reports.json` and `best/`: what was reported, and the best checkpoint
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from ray.train import get_context

from retrain.disk import replacing
from retrain.errors import RemoteError, UsageError
from retrain.project import CODE, Project
from retrain.remote import Remote
from retrain.servers import ray_cluster
from retrain.store import Store
from tasks.train.job import TrainingJob

START = "start"
TOKEN = "token-"  # of the file in the scratch by which a machine knows that it sees it


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
    from pyarrow.fs import FileSystem, copy_files

    files, path = FileSystem.from_uri(str(target))
    files.create_dir(path)
    copy_files(str(source), path, destination_filesystem=files)


def forget(job: TrainingJob) -> None:
    """Removes what a training has in the remote."""
    from pyarrow.fs import FileSystem

    if job.remote:
        files, path = FileSystem.from_uri(job.storage)
        with suppress(FileNotFoundError):
            files.delete_dir(path)
