"""How often the gate is wrong: many draws of models whose true quality is known.

    python -m benchmarks.gate [--table comparisons|years|frontier]

Nothing is trained: a model is a true quality, and its answers are drawn. The decisions are those of
`tasks.gate.paired` with the rules as shipped (`Gate()`), and the draws are seeded.

- `comparisons`: how often a challenger that is truly worse by a point passes as `not worse` with a
  margin of a point, and how often one that is as good passes as `better`, for every metric by which
  models are compared. Ten classes, equally frequent or from 20 to 1 in equal ratios; from 30 to
  2,000 test images; two models that differ on 1, 3, 10 or 20 % of them, of which the largest share
  is shown. Each at a level of 5 %. The truth is that of the distribution of which the images are
  drawn. Of a class with fewer than `min_compared` images nothing is said. The random weights are
  drawn 500 times instead of 10,000.
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
from scipy.optimize import brentq
from scipy.special import zeta

from retrain.workload import Gate
from tasks.data.metrics import ClassCounts, Predictions, split_name
from tasks.gate import draws as random_weights
from tasks.gate.paired import COMPARABLE, compare, p_value
from tasks.gate.pairs import Pairs

LEVEL = Gate().level
POINT = 0.01
MIN_COMPARED = Gate().min_compared

CLASSES = 10
RARE, COMMON = f"recall[{CLASSES - 1}]", "recall[0]"
METRICS = (*COMPARABLE, COMMON, RARE, f"precision[{CLASSES - 1}]", f"f1[{CLASSES - 1}]")
SIZES = (30, 50, 100, 360, 2000)
DIFFERING = (0.01, 0.03, 0.1, 0.2)

ACCURACY = 0.75  # of production in the first week, so that better ones have room for a year
WEEKS = 52
IMAGES = 2000
GROWTH = 1.02
REGIMES = ("the same", "growing by 2 %", "fresh")

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


# Comparisons of two models, by every metric.


def frequencies(balanced: bool) -> Floats:
    """How frequent each class is."""
    found = np.ones(CLASSES) if balanced else np.geomspace(20, 1, CLASSES)
    return found / found.sum()


def joint(balanced: bool, gained: float, lost: float) -> Floats:
    """The shares of images by class, challenger's answer and opponent's answer, (10, 10, 10).

    Where only one is right, the other gives any other class alike; where both are wrong, the same.

    Args:
        balanced: Whether the classes are equally frequent.
        gained: The share of each class that only the challenger has right.
        lost: The share that only the opponent has right.
    """
    shares = np.zeros((CLASSES,) * 3)
    for label, frequency in enumerate(frequencies(balanced)):
        for other in set(range(CLASSES)) - {label}:
            shares[label, label, other] = frequency * gained / (CLASSES - 1)
            shares[label, other, label] = frequency * lost / (CLASSES - 1)
            shares[label, other, other] = frequency * (0.1 - gained) / (CLASSES - 1)
        shares[label, label, label] = frequency * (0.9 - lost)
    return shares


def true_difference(shares: Floats, metric: str) -> float:
    """By how much the challenger is better, in a metric of classes, over all images."""
    actual = shares.sum(axis=(1, 2))
    ours = ClassCounts(actual, shares.sum(axis=(0, 2)), np.einsum("iij->i", shares))
    theirs = ClassCounts(actual, shares.sum(axis=(0, 1)), np.einsum("iji->i", shares))
    if metric == "accuracy":
        return float(ours.correct.sum() - theirs.correct.sum())
    kind, label = split_name(metric)
    found = [getattr(each, kind.removeprefix("macro_")) for each in (ours, theirs)]
    values = [each.mean() if label is None else each[int(label)] for each in found]
    return float(values[0] - values[1])


# Of log_loss: the probabilities of the true class where a model is right, and where it is not.
LIKELIHOOD = {True: 0.9, False: 0.1}


def truth(balanced: bool, metric: str, differing: float, difference: float) -> Floats:
    """The shares of images for which the challenger is better by a difference.

    Where the two must differ on more images for that, they do.
    """

    def of(net: float) -> Floats:
        either = max(differing, abs(net))
        return joint(balanced, (either + net) / 2, (either - net) / 2)

    def value(net: float) -> float:
        if metric == "log_loss":
            return net * float(np.log(LIKELIHOOD[True] / LIKELIHOOD[False]))
        return true_difference(of(net), metric)

    return of(
        0.0 if difference == 0 else float(brentq(lambda net: value(net) - difference, -0.1, 0.1))
    )


def drawn(random: np.random.Generator, shares: Floats, images: int) -> Pairs:
    """The answers of two models for some images; their classes are those that the images have."""
    flat = np.clip(shares, 0, None).ravel()
    kinds = random.choice(flat.size, images, p=flat / flat.sum())
    label, ours, theirs = np.unravel_index(kinds, shares.shape)
    present = np.unique(label)
    others = np.setdiff1d(np.arange(CLASSES), present)
    order = np.concatenate([present, others])
    place = np.argsort(order)

    def answers(given: NDArray[np.int64]) -> Predictions:
        likely = np.where(given == label, LIKELIHOOD[True], LIKELIHOOD[False]).astype(np.float32)
        return Predictions(place[label], place[given], likely, likely)

    return Pairs(tuple(map(str, order)), len(present), answers(ours), answers(theirs))


def passes(pairs: Pairs, metric: str, margin: float) -> bool:
    """Whether the challenger passes: with a margin as not worse, without one as better."""
    _, label = split_name(metric)
    if label is not None and pairs.of_class(label).rows < MIN_COMPARED:
        return False
    return compare(pairs, metric, margin, LEVEL)["outcome"] in ("better", "not worse")


def comparisons(draws: int) -> None:
    """Prints the largest share of false passes over the discordances, for each metric and size."""
    random_weights.DRAWS = 500
    error = 2 * np.sqrt(LEVEL * (1 - LEVEL) / draws)
    print(f"Level {LEVEL:.0%}, {draws:,} draws: up to {LEVEL + error:.1%} is within the error.\n")
    print("| metric | classes | claim |" + "".join(f" {size:,} |" for size in SIZES))
    print("|---|---|---|" + "---|" * len(SIZES), flush=True)
    for metric in METRICS:
        for balanced in (True, False):
            for claim, margin in (("not worse", POINT), ("better", 0.0)):
                cells = []
                for images in SIZES:
                    shares = []
                    for differing in DIFFERING:
                        random = np.random.default_rng(images)
                        of = truth(balanced, metric, differing, -margin)
                        found = [
                            passes(drawn(random, of, images), metric, margin) for _ in range(draws)
                        ]
                        shares.append(np.mean(found))
                    cells.append(f" {max(shares):.1%} |")
                kind = "equal" if balanced else "20 to 1"
                print(f"| `{metric}` | {kind} | {claim} |" + "".join(cells), flush=True)


# Years of retrainings.


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
    parser.add_argument("--table", choices=("comparisons", "years", "frontier"))
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--years", type=int, default=2000)
    options = parser.parse_args()
    if options.table in (None, "years"):
        years(["as shipped"], options.years, (POINT, Gate().margin), worst=False)
    if options.table in (None, "frontier"):
        others = max(1, options.years // 10)
        years([*RULES], others, (POINT,), worst=False)
        years([*RULES], others, (POINT,), worst=True)
    if options.table in (None, "comparisons"):
        comparisons(options.draws)


if __name__ == "__main__":
    main()
