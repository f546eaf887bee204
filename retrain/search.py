"""The search for better parameters: the values to try, and its study in Optuna.

The study is a journal file with a line for each change; a killed search goes on with it. One
process at a time works at a search, so a trial that is running when a search begins was left by one
that was killed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, inf, isfinite, prod, remainder
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any

from retrain.outputs import Plan
from retrain.params import as_yaml
from retrain.step import digest_of
from retrain.workload import Searched, Tune, Workload

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage
    from optuna.trial import BaseTrial, FrozenTrial

Values = dict[str, Any]  # by the parameter's dotted name

JOURNAL = "journal.log"
LOCK = "search.lock"
NAME = "search"
DIGITS = 5  # of a value from a range: a person can read and paste it
ABSENT = object()
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}  # as Optuna calls them

# A trial is compared at a quarter and at half of a whole training, and goes on if it is in the
# better half there: asynchronous successive halving (Li et al., 2020). Earlier, a warm-up or
# augmentation, which are slow at first, would decide.
RUNGS = (4, 2)
UNPRUNED = 3  # complete trials before that


@dataclass(frozen=True)
class Parameter:
    """A parameter that is searched.

    Attributes:
        name: The dotted name of the parameter.
        searched: The values that are tried.
        is_whole: Whether a value from its range is a whole number.
        current: Its value in the workload; `ABSENT` if it has none there.
    """

    name: str
    searched: Searched
    is_whole: bool
    current: Any

    @property
    def ends(self) -> Sequence[Any]:
        """The least and the largest value, or all choices."""
        kind = int if self.is_whole else float
        low, high = self.searched.low, self.searched.high
        return self.searched.choices or [kind(end) for end in (low, high) if end is not None]

    @property
    def countable(self) -> Sequence[Any]:
        """All values: the choices, or whole numbers; empty if they cannot be counted."""
        if self.searched.choices or not self.is_whole or self.searched.log:
            return self.searched.choices
        low, high = self.ends
        return range(low, high + 1, int(self.searched.step or 1))

    def draw(self, trial: "BaseTrial") -> None:
        """Lets Optuna's sampler choose a value for a trial; one that it has already remains."""
        step, log = self.searched.step, self.searched.log
        if self.searched.choices:
            trial.suggest_categorical(self.name, [as_yaml(choice) for choice in self.ends])
        elif self.is_whole:
            trial.suggest_int(self.name, *self.ends, step=int(step or 1), log=log)
        else:
            trial.suggest_float(self.name, *self.ends, step=step, log=log)

    def faults(self) -> Iterator[str]:
        """What Optuna says is wrong with the range."""
        from optuna.trial import FixedTrial

        if not self.searched.choices:
            try:
                self.draw(FixedTrial({self.name: self.ends[0]}))
            except ValueError as error:
                yield f"tune.space.{self.name}: {error}"

    def from_optuna(self, drawn: Any) -> Any:
        """The value for what Optuna has drawn, where a choice is a text."""
        if self.searched.choices:
            return {as_yaml(choice): choice for choice in self.ends}[drawn]
        low, high = self.ends
        return drawn if self.is_whole else min(max(float(f"{drawn:.{DIGITS}g}"), low), high)


def parameters(workload: Workload) -> list[Parameter]:
    """The parameters that a workload's `tune.space` names, by name.

    A range is one of whole numbers if its ends are, unless the workload's own value is none.
    """
    current_values = workload.flat()
    space = []
    for name, searched in sorted(workload.tune.space.items()):
        current = current_values.get(name, ABSENT)
        numbers = [
            number for number in (searched.low, searched.high, searched.step) if number is not None
        ]
        is_whole = all(type(number) is int for number in numbers) and not isinstance(current, float)
        space.append(Parameter(name, searched, is_whole, current))
    return space


def size(space: Sequence[Parameter]) -> float:
    """How many combinations there are; infinity if they cannot be counted."""
    return prod(len(parameter.countable) or inf for parameter in space)


def first_values(space: Sequence[Parameter], trials: int) -> list[Values]:
    """What is tried first, as Optuna keeps it: the workload's own values, and all of a small space.

    Since the workload's own values are tried, if they are in the space, the best trial is never
    worse than these.

    Args:
        space: The parameters that are searched.
        trials: How many are tried in all.
    """
    current_values = (
        [tuple(parameter.current for parameter in space)] if all(map(_has_its_own, space)) else []
    )
    every = (
        [*product(*(parameter.countable for parameter in space))] if size(space) <= trials else []
    )
    return [
        {
            parameter.name: as_yaml(value) if parameter.searched.choices else value
            for parameter, value in zip(space, combination, strict=True)
        }
        for combination in (
            *current_values,
            *(values for values in every if values not in current_values),
        )
    ]


def _has_its_own(parameter: Parameter) -> bool:
    """Whether the workload's own value of a parameter is one of those that may be tried."""
    current, step = parameter.current, parameter.searched.step
    if parameter.searched.choices:
        return current in parameter.searched.choices
    low, high = parameter.ends
    if type(current) not in (int, float) or not low <= current <= high:
        return False
    return not step or abs(remainder(current - low, step)) < 1e-9


@dataclass(frozen=True)
class Ending:
    """How a trial has ended.

    Attributes:
        state: `complete`, `pruned` or `failed`.
        best: The entry of its best epoch in the training's history; None if it has none.
        reached: The best metric up to each epoch; larger is better: it is the opposite of a loss.
        reason: Why it failed.
        cached: Whether the store had its output.
        seconds: How long it took.
    """

    state: str
    best: Mapping[str, Any] | None
    reached: Sequence[float]
    reason: str | None
    cached: bool
    seconds: float


def search_key(training: Plan, tune: Tune) -> str:
    """SHA-256 (hex) over what identifies a search: the training, the space and the seed.

    The values that the space varies do not count as a part of the training.

    Args:
        training: The plan of a trial, which has the version of the data too.
        tune: The space and the seed.
    """
    config = {
        name: value
        for name, value in training.config.items()
        if not any(
            name == searched_name or name.startswith(f"{searched_name}.")
            for searched_name in tune.space
        )
    }
    space = {name: searched.model_dump(mode="json") for name, searched in tune.space.items()}
    identity = asdict(replace(training, config=config)) | {"space": space, "seed": tune.seed}
    return digest_of(identity)


@dataclass(frozen=True)
class Search:
    """A search, whose study is made when it is first needed.

    Attributes:
        folder: Where the study is kept; it need not exist.
        space: The parameters that are searched.
        seed: The seed of the values that are drawn.
        metric: The metric that trials are compared by.
        maximize: Whether the metric should be large.
    """

    folder: Path
    space: Sequence[Parameter]
    seed: int
    metric: str
    maximize: bool

    @cached_property
    def storage(self) -> "BaseStorage":
        """The journal; or the memory, if it does not exist."""
        from optuna.storages import InMemoryStorage, JournalStorage
        from optuna.storages.journal import JournalFileBackend

        file = self.folder / JOURNAL
        return JournalStorage(JournalFileBackend(str(file))) if file.exists() else InMemoryStorage()

    @cached_property
    def study(self) -> "Study":
        """The study in Optuna."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        return optuna.create_study(
            storage=self.storage,
            study_name=NAME,
            direction="maximize" if self.maximize else "minimize",
            load_if_exists=True,
        )

    @property
    def has_failed(self) -> bool:
        """Whether trials are over and all of them failed; they are tried again."""
        rows = self.rows()
        return bool(rows) and all(row["state"] == FAILED for row in rows)

    def begin(self, trials: int, *, anew: bool) -> None:
        """Creates the journal, and decides what is tried first.

        Args:
            trials: How many there are to be in all.
            anew: Forget the trials that there are.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / JOURNAL
        if anew:
            file.unlink(missing_ok=True)
        file.touch()
        for opened in ("study", "storage"):  # they may be of the journal before
            self.__dict__.pop(opened, None)
        for values in first_values(self.space, trials):
            self.study.enqueue_trial(values, skip_if_exists=True)

    def next(self, running: Collection[int] = ()) -> "Trial":
        """The trial to run next: one whose process was killed, or a new one.

        Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) draws its values, with a
        seed of the trial's own: a search that was killed draws what it would have drawn anyway.

        Args:
            running: The numbers of the trials that run beside it.
        """
        from optuna import Trial
        from optuna.samplers import TPESampler

        trials = self.study.get_trials(deepcopy=False)
        interrupted = [earlier.number for earlier in trials if earlier.state.name == "RUNNING"]
        interrupted = [number for number in interrupted if number not in running]
        number = interrupted[0] if interrupted else len(trials)
        seed = int(digest_of([self.seed, number])[:8], 16)
        self.study.sampler = TPESampler(seed=seed, constant_liar=bool(running))
        trial = Trial(self.study, self._id(number)) if interrupted else self.study.ask()
        for parameter in self.space:
            parameter.draw(trial)
        return trial

    def values(self, trial: "Trial | FrozenTrial") -> Values:
        """The values of a trial, by the parameter's dotted name."""
        return {
            parameter.name: parameter.from_optuna(trial.params[parameter.name])
            for parameter in self.space
        }

    def tell(self, trial: "Trial", ending: Ending) -> None:
        """Keeps how a trial has ended."""
        from optuna.trial import TrialState

        reached = [value if self.maximize else -value for value in ending.reached]
        for epoch, value in enumerate(reached, start=1):
            if isfinite(value):  # the metric was reported
                trial.report(value, epoch)
        for name in ("best", "reason", "cached", "seconds"):
            trial.set_user_attr(name, getattr(ending, name))
        trial.set_user_attr("epochs", len(reached))
        states = {state: name for name, state in STATES.items()}
        result = reached[-1] if ending.state == COMPLETE else None
        self.study.tell(trial, result, TrialState[states[ending.state]])

    def rows(self) -> list[dict[str, Any]]:
        """The trials that have ended, in order, as they stand in the document of a run."""
        return [
            {
                "trial": trial.number,
                "values": self.values(trial),
                "state": STATES[trial.state.name],
                **trial.user_attrs,
            }
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.is_finished()
        ]

    def bounds(self) -> dict[int, float]:
        """What a trial has to have reached, by the number of an epoch, so that it is not pruned.

        It is known before a trial begins, because all workers of a training, which may be on
        several machines, have to end it alike. Larger is better: it is the opposite of a loss.
        Nothing is pruned before there are some complete trials, whose lengths say what a whole
        training is.
        """
        lengths = [row["epochs"] for row in self.rows() if row["state"] == COMPLETE]
        if len(lengths) < UNPRUNED:
            return {}
        sign = 1 if self.maximize else -1
        curves = [trial.intermediate_values for trial in self.study.get_trials(deepcopy=False)]
        rungs = [ceil(max(lengths) / part) for part in RUNGS]
        metrics_by_rung = {
            rung: [sign * curve[rung] for curve in curves if rung in curve] for rung in rungs
        }
        return {rung: median_high(values) for rung, values in metrics_by_rung.items() if values}

    def _id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(NAME)
        return self.storage.get_trial_id_from_study_id_trial_number(study, number)
