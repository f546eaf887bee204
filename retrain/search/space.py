"""The values that a search may try, from `tune.space`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod, remainder
from typing import TYPE_CHECKING, Any

from retrain.params import as_yaml
from retrain.workload import Searched, Workload

if TYPE_CHECKING:
    from optuna.trial import BaseTrial

Values = dict[str, Any]  # by the parameter's dotted name

DIGITS = 5  # of a value from a range: a person can read and paste it
ABSENT = object()


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
            trial.suggest_categorical(self.name, [as_yaml(each) for each in self.ends])
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
    own = workload.flat()
    space = []
    for name, searched in sorted(workload.tune.space.items()):
        current = own.get(name, ABSENT)
        given = [each for each in (searched.low, searched.high, searched.step) if each is not None]
        is_whole = all(type(each) is int for each in given) and not isinstance(current, float)
        space.append(Parameter(name, searched, is_whole, current))
    return space


def size(space: Sequence[Parameter]) -> float:
    """How many combinations there are; infinity if they cannot be counted."""
    return prod(len(each.countable) or inf for each in space)


def first_values(space: Sequence[Parameter], trials: int) -> list[Values]:
    """What is tried first, as Optuna keeps it: the workload's own values, and all of a small space.

    With its own values, if they are in the space, a search never ends with something worse than
    what is there.

    Args:
        space: What is searched.
        trials: How many are tried in all.
    """
    own = [tuple(each.current for each in space)] if all(map(_has_its_own, space)) else []
    every = [*product(*(each.countable for each in space))] if size(space) <= trials else []
    return [
        {
            each.name: as_yaml(value) if each.searched.choices else value
            for each, value in zip(space, combination, strict=True)
        }
        for combination in (*own, *(other for other in every if other not in own))
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


def from_optuna(space: Sequence[Parameter], drawn: Mapping[str, Any]) -> Values:
    """Values of a trial, by the parameter's dotted name."""
    return {each.name: each.from_optuna(drawn[each.name]) for each in space}
