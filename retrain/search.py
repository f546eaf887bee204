"""The search for better parameters: the values to try, and its study in Optuna.

The study is a journal file with a line for each change; a killed search goes on with it. One
process at a time works at a search, so a trial that is running when a search begins was left by one
that was killed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, inf, isfinite, prod
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any

from retrain.outputs import Plan
from retrain.params import as_yaml, parse_yaml
from retrain.step import digest_of
from retrain.workload import Searched, Tune, Workload

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

Values = dict[str, Any]  # by the parameter's dotted name
Space = dict[str, "BaseDistribution"]  # by the same names; a choice is its text in YAML

JOURNAL = "journal.log"
LOCK = "search.lock"
NAME = "search"
DIGITS = 5  # of a value from a range: a person can read and paste it
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
STATES = {"COMPLETE": COMPLETE, "PRUNED": PRUNED, "FAIL": FAILED}  # as Optuna calls them

# A trial is compared at a quarter and at half of a whole training, and goes on if it is in the
# better half there: asynchronous successive halving (Li et al., 2020). Earlier, a warm-up or
# augmentation, which are slow at first, would decide.
RUNGS = (4, 2)
UNPRUNED = 3  # complete trials before that


def space_of(workload: Workload) -> Space:
    """What a workload's `tune.space` lets a trial have, by name.

    Raises:
        ValueError: A range makes no sense, as Optuna says.
    """
    current, space = workload.flat(), {}
    for name, searched in sorted(workload.tune.space.items()):
        try:
            space[name] = _distribution(searched, current.get(name))
        except ValueError as error:
            raise ValueError(f"tune.space.{name}: {error}") from None
    return space


def _distribution(searched: Searched, current: Any) -> "BaseDistribution":
    """A range is one of whole numbers if its ends are, unless the workload's own value is none."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if searched.choices:
        return CategoricalDistribution([as_yaml(choice) for choice in searched.choices])
    given = searched.model_dump(exclude={"choices"}, exclude_none=True)
    numbers = [given[name] for name in ("low", "high", "step") if name in given]
    is_whole = all(type(number) is int for number in numbers) and not isinstance(current, float)
    return IntDistribution(**given) if is_whole else FloatDistribution(**given)


def value_of(drawn: Any) -> Any:
    """The value for what Optuna has drawn: a choice is read, and a real number is rounded."""
    if isinstance(drawn, str):
        return parse_yaml(drawn)
    return float(f"{drawn:.{DIGITS}g}") if isinstance(drawn, float) else drawn


def values_of(trial: "Trial | FrozenTrial") -> Values:
    """The values of a trial."""
    return {name: value_of(drawn) for name, drawn in trial.params.items()}


def ends(distribution: "BaseDistribution") -> Sequence[Any]:
    """The least and the largest value, or all choices, as Optuna draws them."""
    drawn = vars(distribution)
    return drawn.get("choices") or [drawn["low"], drawn["high"]]


def _countable(distribution: "BaseDistribution") -> Sequence[Any]:
    """All values: the choices, or whole numbers; empty if they cannot be counted."""
    drawn = vars(distribution)
    if "choices" in drawn:
        return ends(distribution)
    is_whole = isinstance(drawn["low"], int) and not drawn["log"]
    return range(drawn["low"], drawn["high"] + 1, drawn["step"]) if is_whole else []


def size(space: Space) -> float:
    """How many combinations there are; infinity if they cannot be counted."""
    return prod(len(_countable(distribution)) or inf for distribution in space.values())


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
    varied = tuple(f"{name}." for name in tune.space)
    config = {
        name: value for name, value in training.config.items() if not f"{name}.".startswith(varied)
    }
    space = {name: searched.model_dump(mode="json") for name, searched in tune.space.items()}
    identity = asdict(replace(training, config=config)) | {"space": space, "seed": tune.seed}
    return digest_of(identity)


def storage_in(folder: Path) -> "BaseStorage":
    """The journal of a search; the memory, if there is none yet."""
    from optuna.storages import InMemoryStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file = folder / JOURNAL
    return JournalStorage(JournalFileBackend(str(file))) if file.exists() else InMemoryStorage()


@dataclass(frozen=True)
class Search:
    """A search.

    Attributes:
        storage: Where its study is.
        space: What is searched.
        seed: The seed of the values that are drawn.
        metric: The metric that trials are compared by.
        maximize: Whether the metric should be large.
        trials: How many there are to be in all, if the space has as many combinations.
    """

    storage: "BaseStorage"
    space: Space
    seed: int
    metric: str
    maximize: bool
    trials: int

    @property
    def wanted(self) -> int:
        """How many trials there are to be in all."""
        return int(min(self.trials, size(self.space)))

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
        return {row["state"] for row in self.rows()} == {FAILED}

    def begin(self, current: Mapping[str, Any]) -> None:
        """Says what is tried first: what was running when the search was killed, and more.

        Since the workload's own values are tried, if they are in the space, the best trial is
        never worse than these. Of a space that has no more combinations than trials, all are.

        Args:
            current: The workload's own values, by name.
        """
        from optuna.trial import TrialState, create_trial

        for trial in self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
            self.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
        own = [
            as_yaml(current.get(name)) if "choices" in vars(of) else current.get(name)
            for name, of in self.space.items()
        ]
        is_small = size(self.space) <= self.trials
        every = product(*map(_countable, self.space.values())) if is_small else ()
        for values in (own, *every):
            params = dict(zip(self.space, values, strict=True))
            with suppress(ValueError):  # the own ones may be outside of the space
                create_trial(state=TrialState.WAITING, params=params, distributions=self.space)
                self.study.enqueue_trial(params, skip_if_exists=True)

    def next(self, *, is_beside: bool = False) -> "tuple[Trial, Values]":
        """The trial to run next, and its values: one that waits, or a new one.

        Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) draws its values, with a
        seed of the trial's own: a search that was killed draws what it would have drawn anyway.

        Args:
            is_beside: Whether others run beside it, which count as bad ones until they end.
        """
        from optuna.samplers import TPESampler

        trials = self.study.get_trials(deepcopy=False)
        waiting = [trial.number for trial in trials if trial.state.name == "WAITING"]
        seed = int(digest_of([self.seed, min(waiting, default=len(trials))])[:8], 16)
        self.study.sampler = TPESampler(seed=seed, constant_liar=is_beside)
        trial = self.study.ask(self.space)
        return trial, values_of(trial)

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
                "values": values_of(trial),
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
