"""How often the gate is wrong: many draws of models whose true accuracy is known.

    python -m benchmarks.gate

Nothing is trained: a model is a true accuracy, and whether it is right about an image is drawn. An
image has a difficulty that all models share (a beta distribution), so that two models of an
accuracy of 0.9 differ on a tenth of the images, as retrained networks do. The decisions are those
of `tasks.gate.paired` with the rules as shipped (`Gate()`); the draws are seeded.

- One comparison: a challenger that is truly worse than the champion by the margin, one that is as
  good, and one that is 5 points better.
- A year: 52 retrainings, whose true accuracies are spread by chance (a standard deviation of half
  a point, as of seeds). A challenger that passes takes the champion's place. Counted are the years
  at whose end production is more than the margin below its best. The test images are the same all
  year, or fresh each week. Beside it: a challenger is promoted if its accuracy is higher on the
  same images (`accuracy >`); and if it is higher than the champion's was when that was tested, each
  on the images of its week (stored numbers).

`declines` is the share of years; `true accuracy` is the mean of production at the end of the year,
in points above the mean of all models.

Result of 2026-11-22: in `benchmarks/README.md`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from retrain.workload import Gate
from tasks.gate.paired import Outcome, compare_accuracies, level_of

GATE = Gate()
ACCURACY, DIFFERING = 0.9, 0.1
SPREAD = 0.005
WEEKS = 52
PASSES = set(GATE.promotes)

decide = lru_cache(1 << 20)(compare_accuracies)


@dataclass
class Model:
    """A model: its true accuracy, and its answers for the test images (True: correct)."""

    truth: float
    correct: NDArray[np.bool_]


def difficulties(random: np.random.Generator, images: int) -> NDArray[np.float64]:
    """The probability of each image to be classified correctly by a model of mean accuracy.

    For probabilities p from a beta distribution with mean m and a + b = s, two models differ on
    2 E[p (1 - p)] = 2 m (1 - m) s / (s + 1) of the images.
    """
    share = DIFFERING / (2 * ACCURACY * (1 - ACCURACY))
    total = share / (1 - share)
    return random.beta(ACCURACY * total, (1 - ACCURACY) * total, images)


def answers(
    random: np.random.Generator, difficulty: NDArray[np.float64], truth: float
) -> NDArray[np.bool_]:
    """Draws a model's answers; its accuracy over all images is `truth` in expectation."""
    if truth >= ACCURACY:  # a share of the images that it would have wrong are right
        shifted = 1 - (1 - difficulty) * (1 - truth) / (1 - ACCURACY)
    else:
        shifted = difficulty * truth / ACCURACY
    return random.random(len(difficulty)) < shifted


def outcome(challenger: Model, other: Model, number: int) -> Outcome:
    """What the gate finds."""
    gained = int((challenger.correct & ~other.correct).sum())
    lost = int((other.correct & ~challenger.correct).sum())
    level = level_of(number, GATE.level)
    return decide(gained, lost, len(other.correct), GATE.margin, level)


def promoted(random: np.random.Generator, images: int, difference: float, draws: int) -> float:
    """How often a challenger is promoted that is truly better by a difference."""
    passed = 0
    for _ in range(draws):
        difficulty = difficulties(random, images)
        champion = Model(ACCURACY, answers(random, difficulty, ACCURACY))
        truth = ACCURACY + difference
        challenger = Model(truth, answers(random, difficulty, truth))
        passed += outcome(challenger, champion, 1) in PASSES
    return passed / draws


def year(
    random: np.random.Generator, images: int, fresh: bool, rule: Callable[..., bool]
) -> tuple[float, float]:
    """A year of retrainings.

    Returns:
        The true accuracy of production at its end, and the best that production had.
    """
    difficulty = difficulties(random, images)
    truths = ACCURACY + SPREAD * random.standard_normal(WEEKS + 1)
    champion = reference = Model(truths[0], answers(random, difficulty, truths[0]))
    stored, best = champion.correct.mean(), champion.truth
    for week, truth in enumerate(truths[1:], 1):
        if fresh:
            difficulty = difficulties(random, images)
            champion = Model(champion.truth, answers(random, difficulty, champion.truth))
            reference = Model(reference.truth, answers(random, difficulty, reference.truth))
        challenger = Model(truth, answers(random, difficulty, truth))
        if rule(challenger, champion, reference, stored, 1 if fresh else week):
            if rule is gate and outcome(challenger, reference, 1 if fresh else week) == "better":
                reference = challenger
            champion, stored = challenger, challenger.correct.mean()
            best = max(best, truth)
    return champion.truth, best


def gate(challenger: Model, champion: Model, reference: Model, stored: float, number: int) -> bool:
    """The rules as shipped."""
    against_best = outcome(challenger, reference, number)
    return outcome(challenger, champion, number) in PASSES and against_best in (
        "better",
        "not worse",
    )


def higher(
    challenger: Model, champion: Model, reference: Model, stored: float, number: int
) -> bool:
    """A higher accuracy on the same images."""
    return bool(challenger.correct.mean() > champion.correct.mean())


def higher_than_stored(
    challenger: Model, champion: Model, reference: Model, stored: float, number: int
) -> bool:
    """A higher accuracy than the champion's was on the images of its own week."""
    return bool(challenger.correct.mean() > stored)


def main() -> None:
    """Prints both tables, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--years", type=int, default=2000)
    options = parser.parse_args()
    print("| test images | worse by the margin | equal | 5 points better |\n|---|---|---|---|")
    for images in (360, 2000, 10_000):
        random = np.random.default_rng(images)
        shares = [
            promoted(random, images, difference, options.draws)
            for difference in (-GATE.margin, 0.0, 0.05)
        ]
        print(f"| {images:,} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    print("\n| rule | test images | declines | true accuracy |\n|---|---|---|---|")
    for fresh in (False, True):
        for rule in (gate, higher, higher_than_stored):
            random = np.random.default_rng(0)
            ends = np.array([year(random, 2000, fresh, rule) for _ in range(options.years)])
            declined = np.mean(ends[:, 0] < ends[:, 1] - GATE.margin)
            gain = 100 * (ends[:, 0].mean() - ACCURACY)
            name = (rule.__doc__ or "").rstrip(".").lower()
            kind = "2,000, fresh each week" if fresh else "2,000, the same all year"
            print(f"| {name} | {kind} | {declined:.1%} | {gain:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
