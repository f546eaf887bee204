"""The flow `tune`: pull > validate > preprocess, then trainings that search for better parameters.

retrain tune vit --trials 20
prefect deployment run tune/vit --watch

A trial is the step `train` with other parameters, so it is cached and continued as any training is.
Only the validation split decides; nothing is registered, compared with the champion or promoted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flows.reports.tuning import (
    NEW,
    TuningReport,
    best_of,
    folder_of,
    key_of,
    search_of,
    settings,
    space_faults,
)
from flows.train import IMPORTS, prepare, train
from retrain.errors import EndsHereError
from retrain.flow import flow
from retrain.locks import locked
from retrain.messages import message_of
from retrain.params import vary
from retrain.registry import tracking
from retrain.runs import console
from retrain.runs.run import Mode, Run, current_run
from retrain.search import FAILED, JOURNAL, LOCK, PRUNED, Ending, Search, values_of
from retrain.servers import ray_cluster
from retrain.step import DataVersion, Input, TrialContext
from retrain.store import Artifact
from retrain.workload import flatten
from tasks.embed.step import embed
from tasks.preprocess.step import preprocess
from tasks.pull.step import data_version, pull
from tasks.train.start import run_trial
from tasks.train.step import train as train_network
from tasks.validate.step import validate

if TYPE_CHECKING:
    from optuna import Trial

RUN = "mlflow_run"  # of the search, an attribute of its study


@flow(
    steps=(pull, validate, preprocess, embed, train_network),
    tells=TuningReport(),
    version=data_version,
    check=space_faults,
    beside=train,
    imports=IMPORTS,
)
def tune(version: DataVersion) -> None:
    """Searches for better parameters of a workload's training, and promotes nothing.

    Raises:
        ValueError: The user has to correct something; or all trials failed.
    """
    run = current_run()
    data = pull(version)
    checked = validate(data)
    images = prepare(data, checked)
    if run.mode is not Mode.LOOK:
        search = _search(run, images, data)
    else:
        search = search_of(run)
        over = 0 if search.has_failed else len(search.rows())
        if over < search.wanted:
            why = f"{over} of {search.wanted} trials are over"
            raise EndsHereError(train_network.name, why)
    best = best_of(run.workload, search)
    train_network(images, data, NEW, workload=vary(run.workload, best["values"]))


def _search(run: Run, images: Artifact, data: Artifact) -> Search:
    """Runs the trials that remain.

    Raises:
        ValueError: All of them failed.
    """
    project, workload = run.project, run.workload
    folder, status = folder_of(run), "FAILED"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, purpose="Waits for another search of this study"):
        if run.refresh or search_of(run).has_failed:
            (folder / JOURNAL).unlink(missing_ok=True)
        (folder / JOURNAL).touch()
        search = search_of(run)
        search.begin(workload.flat())
        params = flatten({"tune": workload.tune.model_dump(include={"space", "seed"})})
        parent = tracking.start_run(
            *(project, workload.name, key_of(run), params, images.digest),
            continued=search.study.user_attrs.get(RUN),
        )
        search.study.set_user_attr(RUN, parent)
        try:
            run_all = _run_in_turn if workload.tune.parallel == 1 else _run_side_by_side
            run_all(run, search, (images, data, NEW), parent)
            best = best_of(workload, search)["best"]
            tracking.log_metrics(project, parent, {search.metric: float(best[search.metric])})
            status = "FINISHED"
        finally:
            tracking.end_run(project, parent, status)
    return search


def _run_in_turn(run: Run, search: Search, inputs: Sequence[Input], parent: str) -> None:
    """Runs the trials one after the other; the same ones however often the search is ended."""
    while len(search.rows()) < search.wanted:
        trial, values = search.next()
        context = TrialContext(f"trial {trial.number}", parent, search.bounds())
        result = run_trial(run, inputs, values, context)
        _end(search, trial, result)


def _run_side_by_side(run: Run, search: Search, inputs: Sequence[Input], parent: str) -> None:
    """Runs several trials at a time, each as a task of Ray that starts its own training.

    A training without workers takes the task's CPU, and a GPU where there are any; the workers of
    another take theirs, and the task takes no CPU.
    """
    import ray

    ray_cluster.connect()
    workload, count = run.workload, search.wanted
    is_alone = workload.scale.workers == 0
    gpus = 1 if is_alone and ray.cluster_resources().get("GPU") else 0
    options = {"num_cpus": int(is_alone), "num_gpus": gpus, "max_retries": 0}
    task = ray.remote(**options)(run_trial)
    beside, running = replace(run, mode=Mode.PLAIN), dict[Any, Any]()
    while running or len(search.rows()) < count:
        if len(running) < min(workload.tune.parallel, count - len(search.rows())):
            trial, values = search.next(is_beside=bool(running))
            context = TrialContext(f"trial {trial.number}", parent, search.bounds())
            running[task.remote(beside, inputs, values, context)] = trial
            continue
        [finished], _ = ray.wait(list(running))
        _end(search, running.pop(finished), _result(finished))


def _result(trial: Any) -> Ending:
    """How the task of a trial has ended; one that Ray has killed has failed, and no other."""
    import ray
    from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

    try:
        ended: Ending = ray.get(trial)
    except (NodeDiedError, OutOfMemoryError, WorkerCrashedError) as error:
        return Ending(FAILED, None, [], message_of(error), False, 0.0)
    return ended


def _end(search: Search, trial: "Trial", ending: Ending) -> None:
    """Keeps how a trial has ended, and shows it in a line."""
    search.tell(trial, ending)
    line = f"failed: {ending.reason}"
    if ending.best:
        value = console.number(ending.best[search.metric])
        line = f"{search.metric} {value} (epoch {ending.best['epoch']} of {len(ending.reached)})"
    line = f"{line}; {' '.join(settings(values_of(trial)))}"
    line = f"{ending.state}: {line}" if ending.state == PRUNED else line
    console.ended(f"trial {trial.number}", ending.cached, line, ending.seconds)
