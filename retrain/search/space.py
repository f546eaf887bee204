"""The values that a search tries: what `tune.space` allows, and which come next.

Optuna's tree-structured Parzen estimator (Bergstra et al., 2011) draws them. It is asked anew for
each trial, with all that were before and a seed of the trial's own, so a search that was ended and
goes on draws what it would have drawn anyway.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from math import ceil, floor, inf, log, log10, prod
from typing import TYPE_CHECKING, Any

from retrain.search.trials import COMPLETE, PRUNED, RUNNING, Trial
from retrain.step import digest_of
from retrain.workload import Searched, Workload

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Values = dict[str, Any]  # by the parameter's dotted name

STARTUP_TRIALS = 10  # at random, before the estimator has anything to go by
ATTEMPTS = 20  # to draw values that were not tried, half of them at random
MAX_COMBINATIONS = 64  # of the ends of all ranges, that are checked before a run
DIGITS = 3  # of a value from a range


@dataclass(frozen=True)
class Parameter:
    """A parameter that is searched.

    Attributes:
        name: Its dotted name.
        searched: Its values.
        is_whole: Whether a value from its range is a whole number.
        current: Its value in the workload; `ABSENT` if it has none there.
    """

    name: str
    searched: Searched
    is_whole: bool
    current: Any

    @property
    def ends(self) -> list[Any]:
        """The least and the largest value, or all choices."""
        if self.searched.choices:
            return list(self.searched.choices)
        low, high = self._range
        return [low] if low == high else [low, high]

    @property
    def count(self) -> float:
        """How many values there are; infinity if they cannot be counted."""
        if self.searched.choices or len(self.ends) == 1:
            return len(self.ends)
        if self._step is None:
            return inf
        low, high = self._range
        return floor((high - low) / self._step + 1e-9) + 1

    def all(self) -> Iterator[Any]:
        """The values, if they can be counted."""
        if self.searched.choices or len(self.ends) == 1:
            yield from self.ends
        else:
            assert self._step is not None
            low, _ = self._range
            for number in range(int(self.count)):
                yield self._rounded(low + number * self._step)

    @property
    def starts_at_current(self) -> bool:
        """Whether the workload's own value is one of those that are tried."""
        if self.searched.choices:
            return self.current in self.searched.choices
        if type(self.current) not in (int, float):
            return False
        low, high = self._range
        steps = (self.current - low) / (self._step or 1)
        on_step = self._step is None or abs(steps - round(steps)) < 1e-9
        return low <= self.current <= high and on_step

    def distribution(self) -> "BaseDistribution":
        """The values for Optuna; of choices and of countable ranges, their index."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.searched.choices:
            return CategoricalDistribution(range(len(self.searched.choices)))
        low, high = self._range
        if self.is_whole:
            step = 1 if self.searched.log else int(self._step or 1)
            return IntDistribution(int(low), int(high), log=self.searched.log, step=step)
        return FloatDistribution(low, high, log=self.searched.log, step=self._step)

    def from_optuna(self, drawn: Any) -> Any:
        """The value for what Optuna has drawn."""
        return self.searched.choices[drawn] if self.searched.choices else self._rounded(drawn)

    def to_optuna(self, value: Any) -> Any:
        """The opposite of `from_optuna`."""
        return self.searched.choices.index(value) if self.searched.choices else value

    @property
    def _range(self) -> tuple[float, float]:
        low, high = self.searched.low, self.searched.high
        assert low is not None and high is not None
        return (int(low), int(high)) if self.is_whole else (float(low), float(high))

    @property
    def _step(self) -> float | None:
        if self.searched.step is None and self.is_whole:
            return 1
        return self.searched.step

    def _rounded(self, value: float) -> float:
        """A value with as many digits as make a difference, which a person can read and paste."""
        if self.is_whole:
            return int(value)
        low, high = self._range
        if low == high:
            return low
        if self.searched.log:
            value = float(f"{value:.{max(DIGITS, ceil(DIGITS - log10(log(high / low))))}g}")
        else:
            width = min(high - low, self._step or inf)
            value = round(value, ceil(DIGITS - log10(width)))
        return min(max(value, low), high)


ABSENT = object()


def parameters(workload: Workload) -> list[Parameter]:
    """The parameters that a workload's `tune.space` names, by name.

    A range is one of whole numbers if its ends are, unless the workload's own value is none.
    """
    tree = workload.model_dump(mode="json")
    found = []
    for name, searched in sorted(workload.tune.space.items()):
        current = _at(tree, name)
        given = [each for each in (searched.low, searched.high, searched.step) if each is not None]
        is_whole = all(type(each) is int for each in given) and not isinstance(current, float)
        found.append(Parameter(name, searched, is_whole, current))
    return found


def _at(tree: Mapping[str, Any], dotted: str) -> Any:
    node: Any = tree
    for name in dotted.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return ABSENT
        node = node[name]
    return node


def size(space: Sequence[Parameter]) -> float:
    """How many combinations there are; infinity if they cannot be counted."""
    return prod(each.count for each in space)


def corners(space: Sequence[Parameter]) -> Iterator[Values]:
    """The values to check before a search: each end of each parameter alone, then combinations."""
    alone = ({each.name: value} for each in space for value in each.ends)
    together = product(*(each.ends for each in space))
    names = [each.name for each in space]
    combined = (dict(zip(names, values, strict=True)) for values in together)
    yield from chain(alone, islice(combined, MAX_COMBINATIONS) if len(space) > 1 else ())


def suggest(space: Sequence[Parameter], before: Sequence[Trial], seed: int) -> Values:
    """The values of the next trial, none that were tried.

    The first trial has the workload's own values, if they are in the space: a search then never
    ends with something worse than what is there.

    Args:
        space: What is searched; has values that were not tried.
        before: All earlier trials, in order, also those that are running.
        seed: The search's.
    """
    if not before and all(each.starts_at_current for each in space):
        return {each.name: each.current for each in space}
    tried = [trial.values for trial in before]
    for attempt in range(ATTEMPTS):
        values = _draw(space, before, seed, attempt)
        if values not in tried:
            return values
    every = product(*(each.all() for each in space))
    names = [each.name for each in space]
    return next(
        values
        for combination in every
        if (values := dict(zip(names, combination, strict=True))) not in tried
    )


def _draw(space: Sequence[Parameter], before: Sequence[Trial], seed: int, attempt: int) -> Values:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    own = int(digest_of([seed, len(before), attempt])[:8], 16)
    startup = STARTUP_TRIALS if attempt < ATTEMPTS // 2 else len(before) + 1
    sampler = optuna.samplers.TPESampler(seed=own, n_startup_trials=startup)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {each.name: each.distribution() for each in space}
    study.add_trials([_as_optuna(space, distributions, trial) for trial in before])
    drawn = study.ask(distributions).params
    return {each.name: each.from_optuna(drawn[each.name]) for each in space}


def _as_optuna(
    space: Sequence[Parameter], distributions: "Mapping[str, BaseDistribution]", trial: Trial
) -> "FrozenTrial":
    """A trial for Optuna: a pruned one is worse than those that were not, a failed one than all."""
    from optuna.trial import TrialState, create_trial

    states = {RUNNING: TrialState.RUNNING, COMPLETE: TrialState.COMPLETE}
    reached = {len(trial.reached): trial.reached[-1]} if trial.state == PRUNED else {}
    return create_trial(
        state=states.get(trial.state, TrialState.PRUNED),
        value=trial.reached[-1] if trial.state == COMPLETE else None,
        params={each.name: each.to_optuna(trial.values[each.name]) for each in space},
        distributions=dict(distributions),
        intermediate_values=reached,
    )
