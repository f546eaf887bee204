"""The flow `tune`: pull > validate > preprocess, then trainings that search for better parameters.

retrain tune vit --trials 20

A trial is the step `train` with other parameters, so it is cached and continued as any training is.
Optuna draws the values of one trial after the other, and keeps those that have ended in a journal:
a search that was killed draws the values of the trial that it has not ended once more. Only the
validation split decides; nothing is registered, compared with the champion or promoted.
"""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from math import inf, prod
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from flows.reports import documents
from flows.reports.training import DataReport
from flows.train import IMPORTS, prepare, train
from retrain.errors import DamagedArtifactError
from retrain.flow import steps_flow
from retrain.locks import locked
from retrain.messages import message_of
from retrain.params import as_yaml, params_entry, parse_yaml, resolve, vary
from retrain.project import Project
from retrain.runs import console, preflight
from retrain.runs.records import Document
from retrain.runs.run import Run, current_run
from retrain.runs.task import is_transient
from retrain.step import Input, json_digest, plan
from retrain.workload import Workload
from tasks.data.champion import champion_ties
from tasks.data.shards import prepared_by
from tasks.embed.step import embed
from tasks.preprocess.step import preprocess
from tasks.pull.step import data_version, pull
from tasks.train.initial_weights import NEW
from tasks.train.job import larger_is_better, score
from tasks.train.step import train as train_network
from tasks.validate.step import validate

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

Space = dict[str, "BaseDistribution"]  # by parameter; a choice is its text in YAML

EXAMPLE = "{train.lr: {low: 1e-4, high: 1e-2, log: true}}"
DIGITS = 5  # of a value from a range: a person can read and paste it
FAILED = "failed"
NOT_SEARCHED = {
    "model.family": "each family has settings of its own. Search one family.",
    "train.init": "a search starts from new weights.",
    "train.best": "trials are compared by it, so it is the same for all.",
}


class TuningReport(DataReport):
    """The report of the flow `tune`."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        document: documents.Tuning = {
            **documents.of_run(run),
            "search": None,
            "trials": None,
            "best": None,
            "command": None,
        }
        if prepared_by(run.workload) not in run.artifacts:
            return dict(document)
        trials, metric = _trials(run), run.workload.train.best.metric
        document["look"]["study"] = run.project.relative(_journal(run))
        document["trials"] = trials
        document["search"] = {"metric": metric, "wanted": _trial_count(run.workload)}
        if trials and trials[0]["state"] != FAILED:
            best = trials[0]
            document["best"], document["command"] = best, _command(run, best["values"])
            document["outcome"] = (
                f"{run.workload.name}: trial {best['trial']} is the best of {len(trials)}: "
                f"{metric} {console.number(best['best'][metric])}."
            )
        return dict(document)

    def show(self, document: Document) -> None:
        """Shows the trials, the best first, and how to use its values."""
        metric, names = document["search"]["metric"], [*document["best"]["values"]]
        rows = [
            [
                str(trial["trial"]),
                trial["state"],
                console.number((trial["best"] or {}).get(metric)),
                *map(as_yaml, trial["values"].values()),
            ]
            for trial in document["trials"]
        ]
        console.say_table(["trial", "state", metric, *names], rows)
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        console.say(escape(document["command"]))
        console.say_places(document)


@steps_flow(
    steps=(pull, validate, preprocess, embed, train_network),
    report=TuningReport(),
    version=data_version,
    other_steps=train.steps,
    imports=IMPORTS,
)
def tune(version: Input) -> None:
    """Searches for better parameters of a workload's training, and promotes nothing.

    Raises:
        ValueError: The user has to correct something; or all trials failed.
    """
    run = current_run()
    preflight.refuse(run.workload, space_faults(run.workload, run.project))
    data = pull(version)
    images = prepare(data, validate(data, champion_ties()))
    wanted, trials = _trial_count(run.workload), _trials(run)
    if run.refresh or len(trials) < wanted or trials[0]["state"] == FAILED:
        run.must_run(train_network.name, f"{len(trials)} of {wanted} trials are over")
        trials = _search(run, wanted, (images, data, NEW))
    if trials[0]["state"] == FAILED:
        reasons = " ".join(sorted({trial["reason"] for trial in trials}))
        raise ValueError(f"All {wanted} trials failed. Change tune.space. {reasons}")
    best = vary(run.workload, trials[0]["values"])
    train_network(images, data, NEW, workload=resolve(best, run.project))


def _search(run: Run, wanted: int, inputs: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Runs the trials that are missing; returns all of them, as `_trials` does."""
    journal = _journal(run)
    journal.parent.mkdir(parents=True, exist_ok=True)
    with locked(journal.with_name("lock"), purpose="Waits for another search of this study"):
        if run.refresh:
            journal.unlink(missing_ok=True)
        journal.touch()
        study = _study(run)
        while len(study.trials) < wanted:
            _run_trial(run, study, inputs)
    return _trials(run)


def _run_trial(run: Run, study: "Study", inputs: tuple[Any, ...]) -> None:
    """Draws the values of the next trial, trains with them, and keeps how it has ended."""
    from optuna.trial import TrialState, create_trial

    number, metric, began = len(study.trials), run.workload.train.best.metric, monotonic()
    space = space_of(run.workload)
    drawn = draw(run.workload, study, space)
    values = {name: _value_of(each) for name, each in drawn.items()}
    best, reason = None, None
    try:
        workload = resolve(_trial_workload(run.workload, run.project, values), run.project)
        facts = train_network(*inputs, workload=workload).facts
        best = {"epoch": facts["best_epoch"]}
        best |= {name: facts[name] for name in facts if name.startswith(("val_", metric))}
    except Exception as error:  # such as memory that does not suffice
        if isinstance(error, DamagedArtifactError) or is_transient(error):
            raise  # it is not of the values
        reason = message_of(error)
    study.add_trial(
        create_trial(
            state=TrialState.COMPLETE if best else TrialState.FAIL,
            value=best[metric] if best else None,
            params=drawn,
            distributions=space,
            user_attrs={
                "state": "complete" if best else FAILED,
                "best": best,
                "reason": reason,
                "seconds": round(monotonic() - began, 3),
            },
        )
    )
    found = f"{metric} {console.number(best[metric])}" if best else f"failed: {reason}"
    console.say(escape(f"trial {number}: {found}; {' '.join(_settings(values))}"))


def draw(workload: Workload, study: "Study", space: Space) -> dict[str, Any]:
    """The values of the next trial, as Optuna has them: first the workload's own.

    So the best trial is never worse than what is there. All combinations are tried of a space that
    has no more of them than there are trials; of others, Optuna's tree-structured Parzen estimator
    (Bergstra et al., 2011) draws. The seed of a trial is its own, so that it draws the same
    whenever the search was ended.
    """
    import optuna

    number = len(study.trials)
    if number == 0:
        own = _own_values(workload, space)
        with suppress(ValueError):  # they are outside of the space
            return optuna.trial.create_trial(value=0.0, params=own, distributions=space).params
    seed = int(json_digest([number])[:8], 16)
    is_small = _size(space) <= workload.tune.trials
    kind = optuna.samplers.BruteForceSampler if is_small else optuna.samplers.TPESampler
    past = optuna.create_study(direction=study.direction, sampler=kind(seed=seed))
    past.add_trials(study.trials)
    return past.ask(space).params


def _own_values(workload: Workload, space: Space) -> dict[str, Any]:
    """The values that a workload has, as Optuna would draw them."""
    current = workload.flat()
    own = {name: current.get(name) for name in space}
    for name, distribution in space.items():
        for text in vars(distribution).get("choices", ()):
            chosen = vary(workload, {name: parse_yaml(text)}).flat()
            if _below(name, chosen) == _below(name, current):
                own[name] = text
    return own


def _below(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a parameter, or of all of a section."""
    return {each: value for each, value in values.items() if _is_in(each, name)}


def _study(run: Run) -> "Study":
    """The trials of the search that have ended; none in a search that has not begun."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal, larger = _journal(run), larger_is_better(run.workload.train.best)
    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))) if journal.exists() else None,
        study_name="search",
        direction="maximize" if larger else "minimize",
        load_if_exists=True,
    )


def _journal(run: Run) -> Path:
    """The file of a search, which is known by its space and by the rest of a training."""
    inputs = [run.artifacts[name] for name in (prepared_by(run.workload), pull.name)]
    training, tuning = plan(train_network, run.workload, [*inputs, NEW]), run.workload.tune
    rest = {
        name: value for name, value in training.config.items() if not _is_in(name, *tuning.space)
    }
    identity = asdict(training) | tuning.model_dump(mode="json", exclude={"trials"})
    folder = run.project.state / "searches" / run.workload.name
    return folder / json_digest(identity | {"config": rest})[:16] / "journal.log"


def _trials(run: Run) -> list[dict[str, Any]]:
    """The trials that have ended, the best first, as the document has them."""
    rows = [
        {
            "trial": trial.number,
            "values": {name: _value_of(drawn) for name, drawn in trial.params.items()},
            **trial.user_attrs,
        }
        for trial in _study(run).trials
    ]
    rule = run.workload.train.best
    return sorted(
        rows, key=lambda row: score(row["best"], rule) if row["best"] else (-inf,), reverse=True
    )


def space_of(workload: Workload) -> Space:
    """What a workload's `tune.space` lets a trial have, by name; without faults."""
    return {name: _distribution(workload, name) for name in sorted(workload.tune.space)}


def _distribution(workload: Workload, name: str) -> "BaseDistribution":
    """A range is one of whole numbers if its ends are, unless the workload's own value is none.

    Raises:
        ValueError: A range makes no sense, as Optuna says.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    searched, current = workload.tune.space[name], workload.flat().get(name)
    if searched.choices:
        return CategoricalDistribution([as_yaml(choice) for choice in searched.choices])
    given = searched.model_dump(exclude={"choices"}, exclude_none=True)
    values = [*given.values(), current]
    kind = FloatDistribution if float in map(type, values) else IntDistribution
    return kind(**given)


def _value_of(drawn: Any) -> Any:
    """The value for what Optuna has drawn: a choice is read, and a real number is rounded."""
    if isinstance(drawn, str):
        return parse_yaml(drawn)
    return float(f"{drawn:.{DIGITS}g}") if isinstance(drawn, float) else drawn


def _trial_count(workload: Workload) -> int:
    """How many trials there are to be in all."""
    return int(min(workload.tune.trials, _size(space_of(workload))))


def _size(space: Space) -> float:
    """How many combinations there are; infinity if they cannot be counted."""
    drawn = [vars(distribution) for distribution in space.values()]
    try:
        return prod(
            len(each.get("choices") or range(each["low"], each["high"] + 1, each["step"]))
            for each in drawn
        )
    except TypeError:  # a range of real numbers
        return inf


def space_faults(workload: Workload, project: Project) -> Iterator[str]:
    """Finds what is wrong with the space: each end of each range is tried, without training."""
    if workload.train.init != "new":
        yield "train.init: a search starts from new weights. Leave it out."
    if not workload.tune.space:
        yield f"tune.space: nothing to search. Give it values: --set 'tune.space={EXAMPLE}'"
    for name in workload.tune.space:
        try:
            _check_searched(name, workload, project)
        except ValueError as error:
            fault = str(error).removeprefix(f"workload {workload.name}: ")
            yield f"tune.space.{name}: {fault}"


def _check_searched(name: str, workload: Workload, project: Project) -> None:
    """Checks a parameter of the space, and each end of its range, or each of its choices.

    Raises:
        ValueError: It cannot be searched, or not with these values.
    """
    if not _is_in(name, *train_network.reads):
        raise ValueError("no training depends on it, and a trial is a training.")
    if embed.needed(workload) and _is_in(name, *embed.reads):
        raise ValueError("the embeddings depend on it, and are made once.")
    for part, reason in NOT_SEARCHED.items():
        if _is_in(name, part):
            raise ValueError(reason)
    drawn = vars(_distribution(workload, name))
    for end in drawn.get("choices") or (drawn["low"], drawn["high"]):
        _trial_workload(workload, project, {name: _value_of(end)})


def _is_in(name: str, *parts: str) -> bool:
    """Whether a parameter is one of some parameters and sections, or in one of them."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def _trial_workload(workload: Workload, project: Project, values: Mapping[str, Any]) -> Workload:
    """A workload with the values of a trial.

    Raises:
        UsageError: They make a training fail.
    """
    varied = vary(workload, values)
    preflight.refuse(varied, train_network.check(varied, project))
    return varied


def _settings(values: Mapping[str, Any]) -> list[str]:
    """The values of parameters in the form that `--set` takes."""
    return [f"{name}={as_yaml(value)}" for name, value in values.items()]


def _command(run: Run, values: Mapping[str, Any]) -> str:
    """The command that trains with the best values, and with the overrides of the search."""
    entry, current = params_entry(run.workload), run.workload.flat()
    overrides = {
        name: value for name, value in entry.overrides.items() if not name.startswith("tune")
    }
    changed = {
        name: value
        for name, value in values.items()
        if name not in current or current[name] != value
    }
    words = ["retrain", "train", entry.key]
    if entry.name != entry.key:
        words += ["--as", entry.name]
    if run.version.revision:
        words += ["--data-rev", run.version.revision]
    for setting in _settings(overrides | changed):
        words += ["--set", setting]
    return shlex.join(words)
