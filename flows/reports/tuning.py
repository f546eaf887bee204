"""What the flow `tune` tells of a search: its trials, the best one, and how to use its values."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.reports.training import DataReport
from flows.train import train
from retrain.errors import UsageError
from retrain.outputs import plan
from retrain.params import as_yaml, origin_of, vary
from retrain.project import Project
from retrain.runs import console, preflight
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.search import (
    COMPLETE,
    FAILED,
    JOURNAL,
    PRUNED,
    Search,
    ends,
    search_key,
    space_of,
    storage_in,
    value_of,
)
from retrain.step import Step
from retrain.workload import Workload
from tasks.data.champion import Start
from tasks.data.shards import prepared_by
from tasks.embed.step import embed
from tasks.pull.step import pull
from tasks.train.job import larger_is_better, score
from tasks.train.step import train as train_network

EXAMPLE = "{train.lr: {low: 1e-4, high: 1e-2, log: true}}"
NEW = Start(None)  # what trials start from
NOT_SEARCHED = {
    "model.family": "each family has settings of its own. Search one family.",
    "train.init": "a search starts from new weights.",
    "train.best": "trials are compared by it, so it is the same for all.",
}
RANKS = {COMPLETE: 2, PRUNED: 1, FAILED: 0}


class TuningReport(DataReport):
    """The report of the flow `tune`; `retrain.flow.Report` describes each method."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        empty = {"search": None, "trials": None, "best": None, "command": None}
        base = self.base_document(run) | empty
        if prepared_by(run.workload) not in run.artifacts:
            return base
        search = search_of(run)
        trials, metric = ranked(run.workload, search), search.metric
        base["look"]["study"] = run.project.relative(folder_of(run) / JOURNAL)
        facts = {"key": key_of(run), "metric": metric, "wanted": search.wanted}
        document = base | {"search": facts, "trials": trials}
        if not trials or trials[0]["state"] != COMPLETE:
            return document
        best = trials[0]
        value = console.number(best["best"][metric])
        which = f"trial {best['trial']} is the best of {len(trials)}: {metric} {value}"
        document |= {"best": best, "command": _command(run, best["values"])}
        return document | {"outcome": f"{run.workload.name}: {which}."}

    def show(self, document: Document) -> None:
        """Shows the trials, the best first, and how to use its values."""
        metric, names = document["search"]["metric"], [*document["best"]["values"]]
        rows = [
            [
                *(str(trial["trial"]), trial["state"]),
                console.number((trial["best"] or {}).get(metric)),
                *(as_yaml(trial["values"][name]) for name in names),
            ]
            for trial in document["trials"]
        ]
        console.say_table(["trial", "state", metric, *names], rows)
        for row in document["trials"]:
            if row["reason"]:
                console.say(escape(f"trial {row['trial']} failed: {row['reason']}"))
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        console.say(escape(document["command"]))
        console.say_places(document)


def space_faults(workload: Workload, project: Project) -> Iterator[str]:
    """Finds what is wrong with the space: each end of each range is tried, without training."""
    if workload.train.init != "new":
        yield "train.init: a search starts from new weights. Leave it out."
    if not workload.tune.space:
        yield f"tune.space: nothing to search. Give it values: --set 'tune.space={EXAMPLE}'"
    for name in workload.tune.space:
        yield from _faults_of_name(name, workload)
    try:
        space = space_of(workload)
    except ValueError as error:
        yield str(error)
        return
    tried = [{name: value_of(end)} for name, of in space.items() for end in ends(of)]
    found = [fault for values in tried for fault in _faults_of(values, workload, project)]
    yield from dict.fromkeys(found)


def settings(values: Mapping[str, Any]) -> list[str]:
    """The values of parameters in the form that `--set` takes."""
    return [f"{name}={as_yaml(value)}" for name, value in values.items()]


def folder_of(run: Run) -> Path:
    """The folder in which the search of a run is kept."""
    return run.project.state / "searches" / run.workload.name / key_of(run)[:16]


def search_of(run: Run) -> Search:
    """The search of a run, with the trials that its study holds now."""
    workload, choice = run.workload, run.workload.train.best
    storage, space, tune = storage_in(folder_of(run)), space_of(workload), workload.tune
    return Search(storage, space, tune.seed, choice.metric, larger_is_better(choice), tune.trials)


def ranked(workload: Workload, search: Search) -> list[dict[str, Any]]:
    """The trials that have ended, the best first: complete ones, pruned ones, failed ones."""

    def rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
        best = score(row["best"], workload.train.best) if row["best"] else ()
        return RANKS[row["state"]], best, -row["trial"]

    return sorted(search.rows(), key=rank, reverse=True)


def best_of(workload: Workload, search: Search) -> dict[str, Any]:
    """The best trial.

    Raises:
        ValueError: No trial is complete.
    """
    rows = ranked(workload, search)
    if not rows or rows[0]["state"] != COMPLETE:
        reasons = {row["reason"] for row in rows if row["reason"]}
        raise ValueError(
            f"All {len(rows)} trials failed. Change tune.space. " + " ".join(sorted(reasons))
        )
    return rows[0]


def key_of(run: Run) -> str:
    """What identifies the search; the images are prepared already."""
    inputs = [run.artifacts[name] for name in (prepared_by(run.workload), pull.name)]
    training = plan(train_network, run.workload, [*inputs, NEW])
    return search_key(training, run.workload.tune)


def _command(run: Run, values: Mapping[str, Any]) -> str:
    """The command that trains with the best values, and with the overrides of the search."""
    origin, current = origin_of(run.workload), run.workload.flat()
    overrides = {
        name: value for name, value in origin.overrides.items() if not name.startswith("tune")
    }
    changed = {
        name: value
        for name, value in values.items()
        if name not in current or current[name] != value
    }
    words = ["retrain", "train", origin.entry]
    if origin.name != origin.entry:
        words += ["--as", origin.name]
    if run.version.revision:
        words += ["--data-rev", run.version.revision]
    for setting in settings(overrides | changed):
        words += ["--set", setting]
    return shlex.join(words)


def _is_read_by(step: Step, name: str) -> bool:
    """Whether a parameter can make a difference to a step."""
    return any(name == part or name.startswith(f"{part}.") for part in step.reads)


def _faults_of_name(name: str, workload: Workload) -> Iterator[str]:
    """Finds why a parameter is not one that can be searched."""
    if not _is_read_by(train_network, name):
        yield f"tune.space.{name}: no training depends on it, and a trial is a training."
    elif embed.needed(workload) and _is_read_by(embed, name):
        yield f"tune.space.{name}: the embeddings depend on it, and are made once."
    for part, reason in NOT_SEARCHED.items():
        if name == part or name.startswith(f"{part}."):
            yield f"tune.space.{name}: {reason}"


def _faults_of(values: Mapping[str, Any], workload: Workload, project: Project) -> Iterator[str]:
    """Finds what is wrong with a training with some values."""
    step_names = [step.name for step in train.steps]
    try:
        preflight.check([train_network], vary(workload, values), project, step_names)
    except UsageError as error:
        fault = str(error).removeprefix(f"workload {workload.name}: ")
        yield f"tune.space: with {settings(values)[0]}: {fault}"
