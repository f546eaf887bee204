"""The flow `tune`: pull > validate > preprocess, then trainings that search for better parameters.

retrain tune vit --trials 20
prefect deployment run tune/vit --watch

A trial is the step `train` with other parameters, so it is cached and continued as any training is.
Only the validation split decides; nothing is registered, compared with the champion or promoted.
"""

import csv
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from flows.reports.data import DataReport
from flows.train import prepare, train
from retrain import preflight, tracking
from retrain.errors import DamagedArtifactError, PrunedError, UsageError
from retrain.flow import flow
from retrain.messages import message_of
from retrain.params import origin_of, vary
from retrain.project import Project
from retrain.runs import console
from retrain.runs.dry_run import DryRun, StepHasToRunError
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.search import space as spaces
from retrain.search.patch import as_yaml, patch
from retrain.search.plot import plot
from retrain.search.table import row, table
from retrain.search.trials import COMPLETE, FAILED, PRUNED, Trial, Trials, bounds, search_key
from retrain.step import REPORT, DataVersion, Input, Step, TrialContext, current_run, plan
from retrain.store import Artifact
from retrain.workload import Workload, flatten
from tasks.data.champion import Start
from tasks.data.embeddings import prepared_by
from tasks.embed.step import embed
from tasks.pull.step import pull
from tasks.train.selection import best_so_far, larger_is_better, pruned_at, score
from tasks.train.step import TRACKED, train as train_network
from tasks.validate.step import validate

EXAMPLE = "{train.lr: {low: 1e-4, high: 1e-2, log: true}}"
NEW = Start(None)  # what trials start from
PLOT, PATCH, TABLE = "search.png", "best.patch", "trials.csv"


def _search(run: Run, images: Artifact, data: Artifact) -> None:
    """Runs the trials that are left, and writes what is told of them.

    Args:
        run: The run.
        images: What the training takes.
        data: The output of `pull`.

    Raises:
        ValueError: All of them failed.
    """
    from filelock import Timeout

    state, project = run.state, run.project
    key, trials = _key(state), _trials(state)
    with ExitStack() as held:
        with suppress(Timeout):  # another process may be at the same search
            held.enter_context(state.store.lock(state.flow, key, wait=False))
            if run.refresh:
                trials.forget()
        params = flatten({"tune": state.workload.tune.model_dump(exclude={"trials"})})
        parent = tracking.start_run(project, state.workload.name, key, params, images.digest)
        try:
            _try_all(run, trials, (images, data, NEW), parent.run_id)
            with trials.locked():
                _report(state, _best(state))
            tracking.log_artifacts(project, parent.run_id, _folder(state) / REPORT, state.flow)
            tracking.log_metrics(project, parent.run_id, _metrics(state))
        except BaseException:
            tracking.end_run(project, parent.run_id, "FAILED")
            raise
        tracking.end_run(project, parent.run_id, "FINISHED")


def _try_all(run: Run, trials: Trials, inputs: Sequence[Input], parent: str) -> None:
    """Runs trials until all are over."""
    workload = run.workload
    suggest = partial(spaces.suggest, spaces.parameters(workload), seed=workload.tune.seed)
    while True:
        with trials.next(_wanted(workload), suggest) as trial:
            if trial is None:
                return
            trials.write(_tried(run, trial, bounds(trials.over()), inputs, parent))


def _tried(
    run: Run, trial: Trial, limits: Mapping[int, float], inputs: Sequence[Input], parent: str
) -> Trial:
    """Runs a trial, or goes on with one that was killed; returns how it ended.

    Args:
        run: The run.
        trial: Its number and values.
        limits: When it is pruned; see `retrain.step.TrialContext`.
        inputs: Of the step `train`.
        parent: The search's run in MLflow.
    """
    workload, choice = run.workload, run.workload.train.best
    name = f"trial {trial.number}"
    began = monotonic()
    history: list[Any] = []
    cached, reason, mlflow = False, None, None
    try:
        chosen = vary(workload, trial.values)
        if found := [*train_network.check(chosen, run.project)]:
            raise UsageError(" ".join(found))
        # One that has ended is compared by its result.
        limits = {epoch: each for epoch, each in limits.items() if epoch < chosen.train.epochs}
        context = TrialContext(name, parent, limits)
        artifact, cached = run.run_trial(train_network, chosen, context, *inputs)
        history = _read(artifact, "history.json")
        mlflow = _read(artifact, TRACKED)["run_id"]
        ended = pruned_at(history, choice, limits)  # the store may have had it
        history = history[:ended]
        status = PRUNED if ended else COMPLETE
    except PrunedError as pruned:
        status, history = PRUNED, list(pruned.history)
    except DamagedArtifactError:  # the images are made again, and the search goes on
        raise
    except Exception as error:
        status, reason = FAILED, message_of(error)
    known = [epoch for epoch in history if choice.metric in epoch]
    trial = replace(
        trial,
        state=status,
        best=max(known, key=lambda epoch: score(epoch, choice), default=None),
        reached=best_so_far(history, choice),
        reason=reason,
        cached=cached,
        seconds=round(monotonic() - began, 3),
        mlflow=mlflow,
    )
    console.ended(name, cached, _in_a_line(trial, choice.metric), trial.seconds)
    return trial


def _in_a_line(trial: Trial, metric: str) -> str:
    values = " ".join(_settings(trial.values))
    if trial.best is None:
        return f"failed: {trial.reason}; {values}"
    epochs = f"epoch {trial.best['epoch']} of {len(trial.reached)}"
    pruned = ", pruned" if trial.state == PRUNED else ""
    return f"{metric} {console.number(trial.best[metric])} ({epochs}{pruned}); {values}"


def _read(artifact: Artifact, file: str) -> Any:
    return json.loads((artifact.folder / REPORT / file).read_text(encoding="utf-8"))


def _settings(values: Mapping[str, Any]) -> list[str]:
    """Values as `--set` takes them."""
    return [f"{name}={as_yaml(value)}" for name, value in values.items()]


def _key(state: RunState) -> str:
    """What identifies the search; the images are prepared already."""
    made = [state.artifacts[name] for name in (prepared_by(state.workload), pull.name)]
    training = plan(train_network, state.workload, [*made, NEW])
    return search_key(training, state.workload.tune)


def _folder(state: RunState) -> Path:
    return state.context.project.state / "searches" / state.workload.name / _key(state)[:16]


def _trials(state: RunState) -> Trials:
    return Trials(_folder(state) / "trials")


def _wanted(workload: Workload) -> int:
    """How many trials there are in all: as many as asked for, or as there are combinations."""
    return int(min(workload.tune.trials, spaces.size(spaces.parameters(workload))))


def _left(state: RunState) -> int:
    """How many trials are left to run."""
    return max(_wanted(state.workload) - len(_trials(state).over()), 0)


def _ranked(state: RunState) -> list[Trial]:
    """The trials that have ended, the best first: complete ones, pruned ones, failed ones."""
    choice = state.workload.train.best
    ranks = {COMPLETE: 2, PRUNED: 1, FAILED: 0}

    def rank(trial: Trial) -> tuple[Any, ...]:
        return ranks[trial.state], score(trial.best, choice) if trial.best else (), -trial.number

    return sorted(_trials(state).over(), key=rank, reverse=True)


def _best(state: RunState) -> Trial:
    """The best trial.

    Raises:
        ValueError: None is complete.
    """
    ranked = _ranked(state)
    if not ranked or ranked[0].state != COMPLETE:
        reasons = {trial.reason for trial in ranked if trial.reason}
        raise ValueError(
            f"All {len(ranked)} trials failed. Change tune.space. " + " ".join(sorted(reasons))
        )
    return ranked[0]


def _metrics(state: RunState) -> dict[str, float]:
    """The best trial's metric and val_loss, for the search's run in MLflow."""
    best = _best(state).best
    assert best is not None
    names = {state.workload.train.best.metric, "val_loss"} & best.keys()
    return {name: float(best[name]) for name in sorted(names)}


def _found(workload: Workload, best: Trial) -> dict[str, Any]:
    """The values of the best training that the workload does not have already."""
    own = {each.name: each.current for each in spaces.parameters(workload)}
    return {name: value for name, value in best.values.items() if own[name] != value}


def _changes(state: RunState, best: Trial) -> dict[str, Any]:
    """What the best training was changed by: the overrides of the run, and what was found."""
    given = origin_of(state.workload).overrides
    kept = {name: value for name, value in given.items() if not name.startswith("tune")}
    return kept | _found(state.workload, best)


def _command(state: RunState, best: Trial) -> str:
    """The command that trains with the best values."""
    origin = origin_of(state.workload)
    words = ["retrain", "train", origin.entry]
    if origin.name != origin.entry:
        words += ["--as", origin.name]
    if state.version.revision:
        words += ["--data-rev", state.version.revision]
    for setting in _settings(_changes(state, best)):
        words += ["--set", setting]
    return shlex.join(words)


def _report(state: RunState, best: Trial) -> None:
    """Writes the plot, the table and the patch."""
    folder, params = _folder(state) / REPORT, state.context.project.params
    folder.mkdir(parents=True, exist_ok=True)
    space, choice = spaces.parameters(state.workload), state.workload.train.best
    plot(_trials(state).over(), space, choice.metric, folder / PLOT)
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        rows = [row(trial) for trial in _ranked(state)]
        csv.writer(file).writerows(table(rows, [each.name for each in space], choice.metric))
    changes = {
        name: each
        for name, each in _changes(state, best).items()
        if _is_read_by(train_network, name)
    }
    text, entry = params.read_text(encoding="utf-8"), origin_of(state.workload).entry
    diff = patch(text, entry, changes, params.name)
    (folder / PATCH).unlink(missing_ok=True)
    if diff:
        (folder / PATCH).write_text(diff, encoding="utf-8")


def _is_read_by(step: Step, name: str) -> bool:
    """Whether a parameter can make a difference to a step."""
    return any(name == each or name.startswith(f"{each}.") for each in step.reads)


def faults(workload: Workload, project: Project, force: bool) -> Iterator[str]:
    """Finds what is wrong with the space: each end of each range is tried, without training."""
    space = spaces.parameters(workload)
    if workload.train.init != "new":
        yield "train.init: a search starts from new weights. Leave it out."
    if not space:
        yield f"tune.space: nothing to search. Give it values to try: --set 'tune.space={EXAMPLE}'"
    for parameter in space:
        name = parameter.name
        if not _is_read_by(train_network, name):
            yield f"tune.space.{name}: no training depends on it, and a trial is a training."
        elif name == "model.family":
            yield f"tune.space.{name}: each family has settings of its own. Search one family."
        elif embed.needed(workload) and _is_read_by(embed, name):
            yield f"tune.space.{name}: the embeddings depend on it, and are made once."
        elif name == "train.init":
            yield f"tune.space.{name}: a search starts from new weights."
        elif name.startswith("train.best"):
            yield f"tune.space.{name}: trials are compared by it, so it is the same for all."
    known = [step.name for step in train.known_steps()]
    seen = set()
    for values in spaces.corners(space):
        try:
            preflight.check([train_network], vary(workload, values), project, known)
        except UsageError as error:
            said = str(error).removeprefix(f"workload {workload.name}: ")
            if said not in seen:
                yield f"tune.space: with {', '.join(_settings(values))}: {said}"
            seen.add(said)


def document(run: RunState) -> Document:
    """A run as JSON-able values; the parts of steps that did not run are None."""
    base = DataReport().base_document(run)
    nothing = {"search": None, "trials": None, "best": None, "command": None}
    if prepared_by(run.workload) not in run.artifacts:
        return base | nothing | {"look": {}, "outcome": None}
    trials, choice, project = _ranked(run), run.workload.train.best, run.context.project
    report = _folder(run) / REPORT
    search = {
        "key": _key(run),
        "metric": choice.metric,
        "larger_is_better": larger_is_better(choice),
        "wanted": _wanted(run.workload),
        "parameters": [parameter.name for parameter in spaces.parameters(run.workload)],
    }
    result = base | nothing | {"search": search, "trials": [row(trial) for trial in trials]}
    result |= {"look": {"plot": project.relative(report / PLOT)}, "outcome": None}
    if not trials or trials[0].state != COMPLETE:
        return result
    if (report / PATCH).exists():
        result["look"]["patch"] = project.relative(report / PATCH)
    result |= {"best": row(trials[0]), "command": _command(run, trials[0])}
    search["found"] = _found(run.workload, trials[0])
    return result | {"outcome": f"{run.workload.name}: {standing(result)}."}


def standing(document: Document) -> str:
    """Which trial is the best."""
    best, metric, trials = document["best"], document["search"]["metric"], document["trials"]
    value = console.number(best["best"][metric])
    first = next(each for each in trials if each["trial"] == 1)
    beside = ""
    if not document["search"]["found"]:
        beside = " with the values that are there already"
    elif best["trial"] != 1 and first["best"]:
        beside = f" (trial 1 has {console.number(first['best'][metric])})"
    return f"trial {best['trial']} of {len(trials)} is the best: {metric} {value}{beside}"


def show(document: Document) -> None:
    """Shows the trials, the best first, and how to use its values."""
    from rich.markup import escape

    columns, *rows = _table(document)
    console.say_table(columns, rows)
    for each in document["trials"]:
        if each["reason"]:
            console.say(escape(f"trial {each['trial']} failed: {each['reason']}"))
    console.say(f"\n[bold]{escape(document['outcome'])}[/]")
    console.say(escape(document["command"]))
    if place := document["look"].get("patch"):
        console.say(escape(f"git apply {place}   # the same in params.yaml"))
    console.say_places(document)


def _table(document: Document) -> list[list[str]]:
    search = document["search"]
    return table(document["trials"], search["parameters"], search["metric"])


def publish(document: Document) -> None:
    """Shows the trials as an artifact of the Prefect flow run."""
    from prefect.artifacts import create_table_artifact

    name = document["workload"].lower().replace("_", "-")
    columns, *rows = _table(document)
    create_table_artifact(
        key=f"{name}-trials",
        table=[dict(zip(columns, row, strict=True)) for row in rows],
        description=f"{document['outcome']} `{document['command']}`",
    )


class TuningReport(DataReport):
    """See `retrain.flow.Report` for each method."""

    faults = staticmethod(faults)
    document = staticmethod(document)
    standing = staticmethod(standing)
    show = staticmethod(show)
    publish = staticmethod(publish)


@flow(tells=TuningReport(), beside=train)
def tune(version: DataVersion) -> None:
    """Searches for better parameters of a workload's training, and promotes nothing.

    Raises:
        ValueError: The user has to correct something; or all trials failed.
    """
    run = current_run()
    assert isinstance(run, Run | DryRun)
    data = pull(version)
    checked = validate(data)
    images = prepare(data, checked)
    if isinstance(run, Run):
        _search(run, images, data)
    elif _left(run.state):
        over, wanted = len(_trials(run.state).over()), _wanted(run.workload)
        raise StepHasToRunError(train_network.name, f"{over} of {wanted} trials are over")
    best = _best(run.state)
    train_network(images, data, NEW, workload=vary(run.workload, best.values))
