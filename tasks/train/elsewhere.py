"""Trains on machines of a cluster, which need not see the folders of the one that starts it.

With `store.remote`, each machine takes the images from there into a store of its own, once for all
its workers. What they make goes through the training's own place in the remote,
`scratch/train/<key>`, which remains after a kill:

- `ray/`: the storage of Ray Train, with the checkpoints
- `start/`: the network whose weights it starts from
- `reports.json` and `best/`: the reports of a function of the user's
- `model/`: the trained network

The small files that show the progress go through an actor of Ray.
"""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from retrain import atomic
from retrain.errors import UsageError
from retrain.locks import AGAIN_SECONDS
from retrain.project import CODE, Project
from retrain.remote import Remote
from retrain.runs import console
from retrain.servers import machines
from retrain.store import Store
from retrain.workload import Scale
from tasks.compute import machine, spread
from tasks.data.shards import ROWS
from tasks.train.job import TrainingJob

START, MODEL = "start", "model"
BEGUN = "begun"  # a file in the scratch: what is in the remote is not of another try
TICK_SECONDS = 0.25


def is_elsewhere(scale: Scale) -> bool:
    """Whether a training takes its images from the remote store, on machines of a cluster."""
    return bool(scale.workers) and spread.is_lazy()


def begin(job: TrainingJob, anew: bool) -> None:
    """Removes what a training has in the remote, if that is of another try.

    A remote that does not answer is waited for: what remains of a killed run is there.

    Args:
        job: The training.
        anew: Whether this is the first of several tries that has to begin at the first epoch.
    """
    waited_for_the_remote(job)
    if job.remote and not (job.scratch / BEGUN).exists():
        if anew:
            forget(job)
        (job.scratch / BEGUN).touch()


def prepare(job: TrainingJob) -> TrainingJob:
    """Makes sure that the machines of the cluster come by the files of a training.

    Returns:
        The training for `located`.

    Raises:
        RemoteError: The remote does not answer.
        UsageError: A machine does not see the store, and there is no remote.
    """
    token = job.scratch / uuid4().hex
    token.touch()
    if not job.remote:
        blind = machines.machines_without(token)
        token.unlink()
        if blind:
            raise UsageError(
                f"The machine {' and '.join(blind)} of the cluster of RAY_ADDRESS does not see the "
                f"store in {Project(job.root).store}. Set store.remote to an object store, such "
                "as s3://bucket/prefix, or RETRAIN_STORE to a folder that all machines see."
            )
        return job
    store = Store.of(Project(job.root))
    for folder in [job.images, job.pulled] if job.ingest == "stream" else [job.images]:
        spread.send(store, *folder.parts[-2:])
    if job.start:
        _copy(job.start, f"{job.storage}/{START}")
    return replace(job, token=token.name, board=_start_board())


@contextmanager
def on_this_machine(job: TrainingJob) -> Iterator[TrainingJob]:
    """A training as a worker has it: with folders of its machine, which go after the block.

    What is raised in the block leaves the folders there, for the next try.
    """
    import ray.train

    here = located(job)
    if here is job:
        yield here
        return
    is_first, store = ray.train.get_context().get_local_rank() == 0, Store(machines.node_root())
    with store.runs.holding(job.scratch.name):
        if is_first:
            machine.forget_unused(store)
        yield here
    if is_first:
        shutil.rmtree(here.scratch)


def located(job: TrainingJob) -> TrainingJob:
    """A training with folders of this machine; those of the step, if they are to be seen here."""
    if not job.remote:
        return job
    is_seen, streams = (job.scratch / job.token).exists(), job.ingest == "stream"
    root = job.images.parents[1] if is_seen else machines.node_root()
    store = Store(root, Remote(job.remote))
    images = _fetched(store, job.images, streams)
    pulled = _fetched(store, job.pulled, streams) if streams else job.pulled
    if is_seen:
        return job
    scratch = store.scratch("train", job.scratch.name)
    here = replace(
        job,
        start=job.start and scratch / START,
        root=CODE.parent,
        scratch=scratch,
        output=scratch / MODEL,
        images=images,
        pulled=pulled,
    )
    if here.start and not here.start.exists():
        with atomic.replacing(here.start) as aside:
            _copy(f"{job.storage}/{START}", aside)
    return here


def _fetched(store: Store, folder: Path, with_rows: bool) -> Path:
    """The folder of an artifact on this machine, with the files that a training opens.

    Raises:
        DamagedArtifactError: The remote does not have it as it was made.
    """

    def is_opened(path: str) -> bool:
        is_other = path.startswith(("test/", "report/"))
        return not is_other and (with_rows or not path.endswith(ROWS))

    step, key = folder.parts[-2:]
    return machine.fetch(store, step, key, is_opened)


def upload(job: TrainingJob) -> None:
    """Brings the trained network to the remote, from the machine of the first worker."""
    if job.remote:
        _copy(job.output, f"{job.storage}/{MODEL}")


def download(job: TrainingJob) -> None:
    """Brings the trained network to the machine that started the training."""
    if job.remote:
        _copy(f"{job.storage}/{MODEL}", job.output)


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


def waited_for_the_remote(job: TrainingJob) -> bool:
    """Waits until the remote answers, which is told; returns whether it was away."""
    from pyarrow.fs import FileSystem

    told = -math.inf
    while job.remote:
        try:
            files, path = FileSystem.from_uri(job.storage)
            files.get_file_info(path)
            break
        except OSError:
            if monotonic() - told > AGAIN_SECONDS:
                told = monotonic()
                console.say(
                    f"train waits for the remote store {job.remote}, which does not answer."
                )
            sleep(TICK_SECONDS)
    return told > 0


class Board:
    """The newest texts of small files, by name."""

    def __init__(self) -> None:
        """Starts without any."""
        self._texts: dict[str, str] = {}

    def put(self, name: str, text: str) -> None:
        """Takes a text."""
        self._texts[name] = text

    def take(self) -> dict[str, str]:
        """Gives the texts that have come since the last call."""
        texts, self._texts = self._texts, {}
        return texts


def _start_board() -> Any:
    """Starts a board on this machine."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()


@contextmanager
def writing_what_workers_tell(job: TrainingJob) -> Iterator[None]:
    """Writes the files that workers put on the board to the scratch, during the block."""
    if job.board is None:
        yield
    else:
        with console.telling_meanwhile(_write, job.board, job.scratch):
            yield


def _write(board: Any, scratch: Path, over: Event) -> None:
    import ray

    ends = False
    while not ends:
        ends = over.wait(TICK_SECONDS)
        for name, text in ray.get(board.take.remote()).items():
            atomic.write_text(scratch / name, text)
