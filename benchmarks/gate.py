"""How often the gate is wrong: many draws of models whose true quality is known.

    python -m benchmarks.gate --draws 400
    python -m benchmarks.gate --groups --draws 1000

Nothing is trained: a model is a true quality, and its answers are drawn. The decisions are those of
`tasks.gate.paired` with the rules as shipped (`Gate()`), and the draws are seeded.

The table is of single comparisons. It shows how often a challenger that is truly worse by a
point passes as `not worse` with a margin of a point, and how often one that is as good passes as
`better`, for every metric by which models are compared. Ten classes, equally frequent or from 20
to 1 in equal ratios; from 30 to 2,000 test images; two models that differ on 1, 3, 10 or 20 % of
them, of which the largest share is shown. Each at a level of 5 %. The truth is that of the
distribution of which the images are drawn. Of a class with fewer than `min_compared` images nothing
is said. The random weights are drawn 500 times instead of 10,000.

With `--groups` it is of images that belong together, in groups in which the differences of the two
models go together: an image takes the outcome of its group with the root of the correlation as its
probability. Three claims: `better`, of a challenger that is as good; `not worse`, with a margin of
five points, of one that is worse by as much; and the power, how often one that is as good passes
with that margin. The two models differ on 10 % of the images. Beside each stands what passes if the
images are taken for independent.

Result of 2026-11-23: in `benchmarks/README.md`.
"""

import argparse
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from retrain.workload import Gate
from tasks.data.metrics import ClassCounts, Predictions, split_name
from tasks.gate import bootstrap
from tasks.gate.bootstrap import Pairs
from tasks.gate.paired import COMPARABLE, compare

RULES = Gate()
POINT = 0.01

CLASSES = 10
RARE, COMMON = f"recall[{CLASSES - 1}]", "recall[0]"
METRICS = (*COMPARABLE, COMMON, RARE, f"precision[{CLASSES - 1}]", f"f1[{CLASSES - 1}]")
SIZES = (30, 50, 100, 360, 2000)
DIFFERING = (0.01, 0.03, 0.1, 0.2)

Floats = NDArray[np.float64]


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

    both = answers(ours), answers(theirs)
    return Pairs(tuple(map(str, order)), len(present), *both, np.arange(images))


UNEVEN = (1, 1, 2, 2, 3, 3, 5, 5, 8, 8, 12, 15, 20, 25, 30, 40, 60, 80, 120, 200)
GROUPS = {
    "1,000 single images": ((1,) * 1000, (0.0,)),
    "200 images, each five times": ((5,) * 200, (1.0,)),
    "300 groups of 5": ((5,) * 300, (0.0, 0.5)),
    "100 groups of 10": ((10,) * 100, (0.0, 0.2, 0.5)),
    "30 groups of 30": ((30,) * 30, (0.0, 0.3)),
    "20 groups of 1 to 200": (UNEVEN, (0.0, 0.3)),
}
GROUP_MARGIN, DIFFER = 0.05, 0.1


def drawn_in_groups(
    random: np.random.Generator, sizes: tuple[int, ...], correlation: float, difference: float
) -> Pairs:
    """The answers of two models for images in groups, of ten classes that each group has."""
    groups, images = np.repeat(np.arange(len(sizes)), sizes), sum(sizes)
    chances = [(DIFFER + difference) / 2, (DIFFER - difference) / 2, 1 - DIFFER]
    of_group, own = (random.choice(3, size, p=chances) for size in (len(sizes), images))
    outcome = np.where(random.random(images) < np.sqrt(correlation), of_group[groups], own)
    label = random.permutation(images) % CLASSES
    models = []
    for wrong in (1, 0):  # of the challenger what is lost, of the opponent what is gained
        given = np.where(outcome == wrong, (label + 1) % CLASSES, label)
        likely = np.where(outcome == wrong, LIKELIHOOD[False], LIKELIHOOD[True]).astype(np.float32)
        models.append(Predictions(label, given, likely, likely))
    return Pairs(tuple(map(str, range(CLASSES))), CLASSES, *models, groups)


def print_groups(draws: int) -> None:
    """Prints how often a challenger passes where images belong together."""
    claims = {"better": (0.0, 0.0), "not worse": (GROUP_MARGIN, -GROUP_MARGIN)}
    claims["power"] = (GROUP_MARGIN, 0.0)
    print("| images | correlation | metric |" + "".join(f" {claim} |" for claim in claims))
    print("|---|---|---|" + "---|" * len(claims), flush=True)
    for name, (sizes, correlations) in GROUPS.items():
        for correlation in correlations:
            for metric in ("accuracy", "macro_recall"):
                cells = []
                for margin, difference in claims.values():
                    random, passed = np.random.default_rng(len(sizes)), []
                    for _ in range(draws):
                        pairs = drawn_in_groups(random, sizes, correlation, difference)
                        alone = replace(pairs, groups=np.arange(pairs.rows))
                        passed.append([passes(each, metric, margin) for each in (pairs, alone)])
                    held, taken_alone = np.mean(passed, axis=0)
                    cells.append(f" {held:.1%} ({taken_alone:.1%}) |")
                print(f"| {name} | {correlation:g} | `{metric}` |" + "".join(cells), flush=True)


def passes(pairs: Pairs, metric: str, margin: float) -> bool:
    """Whether the challenger passes: with a margin as not worse, without one as better."""
    _, label = split_name(metric)
    if label is not None and pairs.of_class(label).rows < RULES.min_compared:
        return False
    return compare(pairs, metric, margin, RULES.level)["outcome"] in ("better", "not worse")


def main() -> None:
    """Prints the largest share of false passes over the discordances, for each metric and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--groups", action="store_true", help="images that belong together")
    options = parser.parse_args()
    draws = options.draws
    bootstrap.DRAWS = bootstrap.FEWEST_DRAWS = 500
    error = 2 * np.sqrt(RULES.level * (1 - RULES.level) / draws)
    print(
        f"Level {RULES.level:.0%}, {draws:,} draws: up to {RULES.level + error:.1%} is within the "
        "error.\n"
    )
    if options.groups:
        print_groups(draws)
        return
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


if __name__ == "__main__":
    main()
