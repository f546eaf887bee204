"""How often the gate is wrong in a year of retrainings with models whose true quality is known.

    python -m benchmarks.gate_years [--table years|frontier]

Nothing is trained: a model is a true quality, and its answers are drawn. The decisions are those of
`tasks.gate.paired` with the rules as shipped (`Gate()`), and the draws are seeded. A single
comparison is in `gate.py`.

- `years`: 52 retrainings with 2,000 test images, 10 % of which two models of a quality answer
  differently. A challenger is a point better than production, as good, or worse by the margin, with
  equal chances; one that passes takes the place. The test images stay all year, or grow by 2 % a
  week, or are fresh each week. `wrong` is the share of the promotions whose model is worse than
  production by the margin; `declines` the share of years that end with production more than the
  margin below its best; `promotions` their number in a year; and the last columns are how often a
  challenger a point better passes in the 1st, 4th and 52nd week. Each image has a difficulty that
  all models share (a beta distribution), so that two models differ on the same images more often.
- `frontier`: the same for other rules: no guard by the reference; the level shared by all
  comparisons on the same images (6/(pi k)^2 of it for the k-th); and three procedures that bound
  the share of wrong promotions whatever the challengers are, LORD++ (Ramdas et al., 2017), SAFFRON
  (Ramdas et al., 2018) and ADDIS (Tian and Ramdas, 2019), with gamma_j in proportion to j^-1.6. And
  for the worst case, a year of challengers that are all worse by the margin.

Result of 2026-11-23: in `benchmarks/README.md`.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from benchmarks.gate import LEVEL, POINT, Floats
from retrain.workload import Gate
from tasks.gate.paired import p_value

ACCURACY = 0.75  # of production in the first week, so that better ones have room for a year
WEEKS = 52
IMAGES = 2000
GROWTH = 1.02
REGIMES = ("the same", "growing by 2 %", "fresh")

Bools = NDArray[np.bool_]


def probabilities(
    gained: NDArray[np.int64], lost: NDArray[np.int64], images: int, margin: float
) -> Floats:
    """What `p_value` gives for each year, (years,)."""
    kinds, place = np.unique(np.stack([gained, lost]), axis=1, return_inverse=True)
    values = [probability(int(one), int(other), images, -margin) for one, other in kinds.T]
    return np.array(values)[place.ravel()]


probability = lru_cache(1 << 20)(p_value)


@dataclass
class Rule:
    """The level of each comparison: as shipped, always the same.

    Attributes:
        years: How many years are simulated at once.
        guarded: Whether the reference guards against decline.
    """

    years: int
    guarded: bool = True

    def levels(self) -> Floats:
        """The levels of the next comparisons, (years,)."""
        return np.full(self.years, LEVEL)

    def note(self, promoted: Bools, p: Floats, reused: float) -> None:
        """Takes in what came of them.

        Args:
            promoted: (years,), where the challenger passed.
            p: (years,), the probabilities that decided.
            reused: The share of the test images that the next comparison has in common with these.
        """


@dataclass
class Shared(Rule):
    """All comparisons on the same images share the level."""

    number: int = 1

    def levels(self) -> Floats:
        """6/(pi k)^2 of the level for the k-th."""
        return np.full(self.years, LEVEL * 6 / (np.pi * self.number) ** 2)

    def note(self, promoted: Bools, p: Floats, reused: float) -> None:
        """Counts; with other images it begins anew."""
        self.number = self.number + 1 if reused else 1


@dataclass
class Online(Rule):
    """LORD++, SAFFRON and ADDIS: each promotion earns level back.

    Comparisons age those before them by the share of the images that they have in common, so that
    fresh images bring the level back.

    Attributes:
        candidate: SAFFRON's lambda: a smaller probability spends nothing; 0 for LORD++.
        discarded: ADDIS' tau: a larger probability spends nothing; 1 for the others.
        clock: (years,), how much was spent.
        earned: When each promotion was, and what it earned; both (years,).
    """

    candidate: float = 0.0
    discarded: float = 1.0
    clock: Floats = field(init=False)
    earned: list[tuple[Floats, Floats]] = field(init=False)

    def __post_init__(self) -> None:
        """Begins with half of the level."""
        self.clock = np.zeros(self.years)
        self.earned = [(np.zeros(self.years), np.full(self.years, LEVEL / 2))]

    def levels(self) -> Floats:
        """What every promotion earned, spread over the comparisons after it."""
        spent = [
            amount * (1 + self.clock - when) ** -1.6 / zeta(1.6) for when, amount in self.earned
        ]
        found: Floats = np.sum(spent, axis=0) * (self.discarded - self.candidate)
        return np.minimum(found, self.candidate or LEVEL)

    def note(self, promoted: Bools, p: Floats, reused: float) -> None:
        """Ages, and notes what was earned: for the first promotion, only the other half."""
        self.clock = self.clock + reused * ((p > self.candidate) & (p <= self.discarded))
        before = sum((amount > 0).astype(int) for _, amount in self.earned[1:])
        amount = np.where(promoted, np.where(before == 0, LEVEL / 2, LEVEL), 0.0)
        self.earned.append((self.clock, amount))


def difficulties(random: np.random.Generator, years: int, images: int) -> NDArray[np.float32]:
    """The probability of each image to be answered correctly in the first week, (years, images).

    For probabilities p from a beta distribution with mean m and a + b = s, two models differ on
    2 E[p (1 - p)] = 2 m (1 - m) s / (s + 1) of the images.
    """
    share = 0.1 / (2 * ACCURACY * (1 - ACCURACY))
    total = share / (1 - share)
    found = random.beta(ACCURACY * total, (1 - ACCURACY) * total, (years, images))
    return found.astype(np.float32)


def answers(random: np.random.Generator, difficulty: NDArray[np.float32], truths: Floats) -> Bools:
    """Draws which images models of some true accuracies have right, (years, images)."""
    better = 1 - (1 - difficulty) * ((1 - truths) / (1 - ACCURACY))[:, None]
    worse = difficulty * (truths / ACCURACY)[:, None]
    right: Bools = random.random(difficulty.shape, np.float32) < np.where(
        (truths >= ACCURACY)[:, None], better, worse
    )
    return right


@dataclass
class Year:
    """What came of many years.

    Attributes:
        promotions: (years,), how many there were.
        wrong: (years,), of these, models that were worse by the margin.
        declined: (years,), whether production ended more than the margin below its best.
        power: By week, how often a challenger a point better passes.
    """

    promotions: NDArray[np.int64]
    wrong: NDArray[np.int64]
    declined: Bools
    power: dict[int, float]


def simulate(rule: Rule, regime: str, margin: float, steps: Sequence[float]) -> Year:
    """Years of retrainings.

    Args:
        rule: The levels.
        regime: One of `REGIMES`.
        margin: Of the gate.
        steps: By how much a challenger may be better than production, with equal chances.
    """
    random, years = np.random.default_rng(0), rule.years
    difficulty = difficulties(random, years, IMAGES)
    production = best_known = highest = np.full(years, ACCURACY)
    champion = reference = answers(random, difficulty, production)
    is_reference = np.ones(years, bool)
    promotions, wrong, power = np.zeros(years, int), np.zeros(years, int), {}
    for week in range(1, WEEKS + 1):
        if week > 1 and regime != "the same":
            images = IMAGES if regime == "fresh" else round(IMAGES * GROWTH ** (week - 1))
            new = images if regime == "fresh" else images - difficulty.shape[1]
            fresh = difficulties(random, years, new)
            ours = answers(random, fresh, production)
            theirs = np.where(is_reference[:, None], ours, answers(random, fresh, best_known))
            kept = slice(0, 0) if regime == "fresh" else slice(None)
            difficulty = np.concatenate([difficulty[:, kept], fresh], axis=1)
            champion = np.concatenate([champion[:, kept], ours], axis=1)
            reference = np.concatenate([reference[:, kept], theirs], axis=1)
        levels = rule.levels()

        if week in (1, 4, WEEKS):
            trial = answers(random, difficulty, production + POINT)
            p = judged(trial, champion, reference, is_reference | (not rule.guarded), margin)
            power[week] = float((p <= levels).mean())
        truths = production + random.choice(steps, years)
        challenger = answers(random, difficulty, truths)
        p = judged(challenger, champion, reference, is_reference | (not rule.guarded), margin)
        passed, better = p <= levels, against(challenger, reference, 0.0) <= levels
        is_wrong = passed & (truths <= production - margin + 1e-9)
        promotions, wrong = promotions + passed, wrong + is_wrong
        becomes = passed & better
        reference = np.where(becomes[:, None], challenger, reference)
        best_known = np.where(becomes, truths, best_known)
        champion = np.where(passed[:, None], challenger, champion)
        production = np.where(passed, truths, production)
        is_reference = np.where(passed, becomes, is_reference)
        highest = np.maximum(highest, production)
        rule.note(passed, p, {"the same": 1.0, "fresh": 0.0}.get(regime, 1 / GROWTH))
    return Year(promotions, wrong, production < highest - margin - 1e-9, power)


def judged(
    challenger: Bools, champion: Bools, reference: Bools, alone: Bools, margin: float
) -> Floats:
    """The probabilities that decide: of both comparisons, the larger one, (years,).

    Args:
        challenger: Which images it has right, (years, images).
        champion: The same.
        reference: The same.
        alone: (years,), where the champion alone is compared with.
        margin: Of the gate.
    """
    p = against(challenger, champion, margin)
    return np.where(alone, p, np.maximum(p, against(challenger, reference, margin)))


def against(challenger: Bools, other: Bools, margin: float) -> Floats:
    """The probabilities of such answers if the challenger were worse by the margin, (years,)."""
    gained, lost = (challenger & ~other).sum(axis=1), (other & ~challenger).sum(axis=1)
    return probabilities(gained, lost, challenger.shape[1], margin)


RULES: dict[str, Callable[[int], Rule]] = {
    "as shipped": lambda years: Rule(years),
    "without the reference": lambda years: Rule(years, guarded=False),
    "level shared, 6/(pi k)^2": lambda years: Shared(years),
    "LORD++": lambda years: Online(years),
    "SAFFRON": lambda years: Online(years, candidate=0.5),
    "ADDIS": lambda years: Online(years, candidate=0.25, discarded=0.5),
}


def years(names: Sequence[str], number: int, margins: Sequence[float], *, worst: bool) -> None:
    """Prints a table of years.

    Args:
        names: Of the rules.
        number: Of years.
        margins: Of the gate.
        worst: Whether all challengers are worse by the margin.
    """
    weeks = (1, 4, WEEKS)
    print(
        "| rule | margin | test images | wrong | with a wrong one | declines | promotions |"
        + "".join(f" week {week} |" for week in weeks)
    )
    print("|---|---|---|---|---|---|---|" + "---|" * len(weeks), flush=True)
    for name in names:
        for margin in margins:
            for regime in REGIMES:
                steps = (-margin,) if worst else (POINT, 0.0, -margin)
                found = simulate(RULES[name](number), regime, margin, steps)
                cells = [
                    f"{found.wrong.sum() / max(1, found.promotions.sum()):.1%}",
                    f"{(found.wrong > 0).mean():.1%}",
                    f"{found.declined.mean():.1%}",
                    f"{found.promotions.mean():.1f}",
                    *(f"{found.power[week]:.0%}" for week in weeks),
                ]
                print(f"| {name} | {margin:g} | {regime} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Prints the tables, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", choices=("years", "frontier"))
    parser.add_argument("--years", type=int, default=2000)
    options = parser.parse_args()
    if options.table in (None, "years"):
        years(["as shipped"], options.years, (POINT, Gate().margin), worst=False)
    if options.table in (None, "frontier"):
        others = max(1, options.years // 10)
        years([*RULES], others, (POINT,), worst=False)
        years([*RULES], others, (POINT,), worst=True)


if __name__ == "__main__":
    main()
