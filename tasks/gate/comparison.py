"""Compares the challenger with the champion and with the reference, on the same test images."""

from dataclasses import dataclass, replace
from pathlib import Path

from retrain.registry import decisions, versions
from retrain.runs.runner import Runner
from retrain.step import Facts, Step, Workspace, digest_of
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data import predictions
from tasks.data.champion import Opponent, Opponents, Scored
from tasks.data.known_images import learnt_images
from tasks.data.slices import NO_SLICES, Slices, metric_of, parse
from tasks.gate import paired
from tasks.gate.pairs import Comparable, pair


@dataclass(frozen=True)
class Terms:
    """What a comparison depends on beside the predictions.

    Attributes:
        number: Of the comparison, among those on the same test images, from 1.
        learnt: The file with the images that the opponent was trained or validated on; None if
            they are not known.
        training: The digest of that training; None if the images are not known.
        slices: Those of the test split, if `gate.no_worse` names some; else there are none.
    """

    number: int
    learnt: Path | None
    training: str | None
    slices: Slices = NO_SLICES

    @property
    def step(self) -> str:
        """Its name as an input."""
        return "terms"

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the above."""
        return digest_of([self.number, self.training, self.slices.digest])


def compare_with(
    run: Runner,
    scores: Artifact,
    slices: Slices,
    champion: Scored | None,
    reference: Scored | None,
) -> Opponents:
    """Compares a challenger with the models that it has to be no worse than.

    Args:
        run: Runs the comparisons; their outputs are cached like any other.
        scores: The challenger's evaluation.
        slices: Of the test split.
        champion: The model in production; None when there is none.
        reference: The best model so far; None when there is none, or it is the champion.
    """
    if champion is None:
        return Opponents(None, None, None)
    number = _number(run, scores, champion)
    if not any(parse(name) for name in run.workload.gate.no_worse):
        slices = NO_SLICES
    return Opponents(
        _compared(run, STEP, scores, champion, number, slices),
        _compared(run, REFERENCE_STEP, scores, reference, number, slices) if reference else None,
        number,
    )


def compare(
    rules: Gate, scores: Artifact, theirs: Artifact, terms: Terms, workspace: Workspace
) -> Facts:
    """Compares two models by the predictions of both for the same images.

    Returns:
        `images`, how many were compared; `learnt` and `other_classes`, how many were left out, as
        in `Comparable`; `recorded`, whether it is known what the opponent was trained on; `level`,
        the probability of an error; and `metrics`, for each metric in `gate.metric` and
        `gate.no_worse` the values of both models and what `Difference` has. Without images to
        compare, `metrics` is empty. A slice with few images is left out.
    """
    import numpy as np

    learnt = None if terms.learnt is None else np.load(terms.learnt, allow_pickle=False)
    found = pair(predictions.read(scores.folder), predictions.read(theirs.folder), learnt)
    level = paired.level_of(terms.number, rules.level)
    facts: Facts = {
        "images": found.pairs.rows,
        "learnt": found.learnt,
        "other_classes": found.other_classes,
        "recorded": learnt is not None,
        "level": level,
        "metrics": {},
    }
    if found.pairs.rows >= rules.min_compared:
        for name in dict.fromkeys((rules.metric, *rules.no_worse)):
            if not parse(name):
                facts["metrics"][name] = _by(found.pairs, name, rules.margin, level)
        facts["metrics"] |= _by_slice(rules, terms.slices, found, level)
    return facts


def _by_slice(rules: Gate, slices: Slices, found: Comparable, level: float) -> Facts:
    """The accuracies in the slices that `gate.no_worse` names, which share the level."""
    import numpy as np

    pairs = {}
    for column, value in filter(None, map(parse, rules.no_worse)):
        for one in slices.named(column, value):
            inside = np.flatnonzero(slices.contains(one)[found.used])
            if len(inside) >= rules.min_compared:
                pairs[metric_of(one)] = found.pairs.take(inside)
    each = level / max(1, len(pairs))
    return {name: _by(some, "accuracy", rules.margin, each) for name, some in pairs.items()}


def _by(pairs: paired.Pairs, metric: str, margin: float, level: float) -> Facts:
    difference = paired.compare(pairs, metric, margin, level)
    gained, lost = paired.only_one_correct(pairs)
    return {
        "challenger": paired.score(pairs.challenger, pairs, metric),
        "opponent": paired.score(pairs.opponent, pairs, metric),
        "gained": gained,
        "lost": lost,
        "difference": difference.value,
        "low": difference.low,
        "high": difference.high,
        "outcome": difference.outcome,
        "visible": difference.visible,
    }


def _compared(
    run: Runner, step: Step, scores: Artifact, scored: Scored, number: int, slices: Slices
) -> Opponent:
    version = scored.registered.version
    same = version.package_digest == scores.facts["package"]
    comparison = None
    if not same and version.train_digest != scores.facts["train"]:
        learnt = learnt_images(run.context.project, version)
        terms = Terms(number, learnt, version.train_digest if learnt else None, slices)
        comparison = dict(run(step, scores, scored.evaluation, terms).facts)
    return Opponent(
        version.version,
        version.package_digest,
        version.train_digest,
        scored.evaluation.facts["metrics"],
        comparison,
    )


def _number(run: Runner, scores: Artifact, champion: Scored) -> int:
    """The number of this comparison among those on the same test images, from 1.

    The same challenger and champion have the number that they got at first.
    """
    project, name = run.context.project, run.workload.name
    made = decisions.read(project, name).comparisons(scores.facts["test_images"])
    registered = versions.find_version(project, name, scores.facts["package"])
    this = (registered and registered.version, champion.registered.version.version)
    return made.index(this) + 1 if this in made else len(made) + 1


STEP = Step(
    "compare_champion",
    compare,
    reads=("gate.metric", "gate.margin", "gate.level", "gate.no_worse", "gate.min_compared"),
    inputs=("evaluate", "evaluate_champion", "terms"),
    libraries=("numpy", "pyarrow", "scipy"),
    hours=2,
)
REFERENCE_STEP = replace(
    STEP, name="compare_reference", inputs=("evaluate", "evaluate_reference", "terms")
)
