"""Compares the challenger with the champion and with the reference, on the same test images."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrain.step import REPORT, Facts, Step, Workspace, step
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data import predictions
from tasks.data.champion import Opponent, RegisteredVersion, ScoredVersion
from tasks.data.gate_rules import describe_margin
from tasks.data.metrics import split_name
from tasks.data.predictions import GROUPS, LEARNT, NamedPredictions, are_learnt, learnt_images
from tasks.data.sample_size import smallest_margin, units_of, units_of_metric
from tasks.data.slices import find_slices, metric_of, parse_metric, slice_mask
from tasks.gate import paired
from tasks.gate.bootstrap import Pairs


def compare_with(
    scores: Artifact, champion: ScoredVersion | None, reference: ScoredVersion | None
) -> tuple[Opponent | None, Opponent | None]:
    """Compares a challenger with the models that it has to be no worse than.

    Args:
        scores: The challenger's evaluation.
        champion: The model in production; None when there is none.
        reference: The best model so far; None when there is none, or it is the champion.

    Returns:
        The champion and the reference, as they were compared.
    """
    return (
        _opponent(compare_champion, scores, champion) if champion else None,
        _opponent(compare_reference, scores, reference) if reference else None,
    )


@step(
    inputs=("evaluate", "evaluate_champion", "registry"),
    reads=("gate.metric", "gate.margin", "gate.level", "gate.no_worse", "gate.min_compared"),
    libraries=("numpy", "pyarrow", "scipy"),
    hours=2,
)
def compare_champion(
    rules: Gate,
    scores: Artifact,
    opponent_scores: Artifact,
    registered: RegisteredVersion,
    workspace: Workspace,
) -> Facts:
    """Compares two models by the predictions of both for the same images.

    An image that one of the two, or a model that it started from, was trained on is no test, nor is
    one that belongs together with it.

    Returns:
        `images`, how many were compared, and `groups`, how many groups of them belong together;
        `learnt`, `other_classes` and `absent`, as in `pair`;
        `new_classes`, those of the challenger that the opponent does not know; `recorded`, whether
        it is known what the opponent was trained on, and `start_recorded`, the same of the models
        that the challenger started from; and `metrics`, for each metric in
        `gate.metric` and `gate.no_worse` the values of both models and what `paired.compare` gives.
        Without images to compare, `metrics` is empty. A slice, or a class, with fewer than
        `gate.min_compared` groups is left out, and if nothing is left of a rule, `not_compared`
        names it.
    """
    challenger, opponent = predictions.read(scores.folder), predictions.read(opponent_scores.folder)
    # The challenger has learnt a test image only if the model that it started from did.
    learnt = [np.zeros(0, np.uint64)]
    recorded = learnt_images(registered.project, registered.version)
    of_challenger = scores.folder / REPORT / LEARNT
    for file in (recorded, of_challenger):
        if file and file.exists():
            learnt.append(np.load(file, allow_pickle=False))
    groups = np.load(scores.folder / GROUPS, allow_pickle=False)
    pairs, used, counts = pair(challenger, opponent, groups, np.concatenate(learnt))
    names = (rules.metric, *rules.no_worse) if counts["groups"] >= rules.min_compared else ()
    by_name = {name: _compared(rules, name, scores, pairs, used) for name in names}
    return counts | {
        "new_classes": [name for name in challenger.known if name not in opponent.known],
        "recorded": recorded is not None,
        "start_recorded": of_challenger.exists(),
        "metrics": {name: facts for metrics in by_name.values() for name, facts in metrics.items()},
        "not_compared": [name for name, compared in by_name.items() if not compared],
    }


def pair(
    challenger: NamedPredictions,
    opponent: NamedPredictions,
    groups: NDArray[np.int64],
    learnt: NDArray[np.uint64],
) -> tuple[Pairs, NDArray[np.bool_], Facts]:
    """Pairs the predictions of two models for the same images.

    Args:
        challenger: The predictions of the challenger.
        opponent: The predictions of the opponent.
        groups: int64 (images,), the same number for images that belong together.
        learnt: The images that are left out, with those of their groups, because a model was
            trained or validated on them, as `image_id` gives them.

    Returns:
        The answers for the images that were not left out, of which only the classes that these
        images have count in averages; bool (images,), which those are; and `images`, how many;
        `groups`, how many groups of them belong together, and `units`, how many of each class;
        `learnt`, how many were left out because a model was trained or validated on them, or on
        one of their group;
        `other_classes`, how many because one of the models does not know their class; and
        `absent`, the classes that both know and that the images lack.
    """
    assert np.array_equal(challenger.images, opponent.images)
    shared = [name for name in challenger.known if name in opponent.known]
    fresh = ~are_learnt(challenger.images, groups, learnt)
    labels = challenger.rows["label"]
    of_shared = pc.is_in(labels, pa.array(shared, pa.string())).to_numpy()
    used = fresh & of_shared
    seen_classes = set(labels.filter(used).unique().to_pylist())
    present = [name for name in shared if name in seen_classes]
    names = tuple(dict.fromkeys((*present, *challenger.known, *opponent.known)))
    ours, theirs = (each.take(used).indexed(names) for each in (challenger, opponent))
    pairs = Pairs(names, len(present), ours, theirs, groups[used])
    counts = {
        "images": pairs.rows,
        "groups": len(pairs.group_sizes),
        "units": units_of(labels.filter(used), pa.chunked_array([pairs.groups])),
        "learnt": int((~fresh).sum()),
        "other_classes": int((fresh & ~of_shared).sum()),
        "absent": [name for name in shared if name not in seen_classes],
    }
    return pairs, used, counts


def _compared(
    rules: Gate, name: str, scores: Artifact, pairs: Pairs, used: NDArray[np.bool_]
) -> dict[str, Facts]:
    """Compares by one metric, or in each of several slices; empty if there are too few images.

    That one of the slices is called worse by mistake has the probability of the level.
    """
    slices = parse_metric(name)
    if slices is None:
        _, label = split_name(name)
        of_metric = pairs if label is None else pairs.of_class(label)
        enough = len(of_metric.group_sizes) >= rules.min_compared
        return {name: _by(pairs, name, rules)} if enough else {}
    compared = {}
    for part in find_slices(scores.facts["slices"], *slices):
        inside = pairs.take(np.flatnonzero(slice_mask(scores, part)[used]))
        if len(inside.group_sizes) >= rules.min_compared:
            compared[metric_of(part)] = _by(inside, "accuracy", rules)
    worse = paired.holm({name: facts["p_worse"] for name, facts in compared.items()}, rules.level)
    for name, facts in compared.items():
        if facts["outcome"] == "worse" and name not in worse:
            facts["outcome"] = "cannot tell"
    return compared


def _by(pairs: Pairs, metric: str, rules: Gate) -> Facts:
    gained, lost = pairs.only_one_correct
    return {
        "challenger": pairs.score(pairs.challenger, metric),
        "opponent": pairs.score(pairs.opponent, metric),
        "gained": gained,
        "lost": lost,
        **paired.compare(pairs, metric, rules.margin, rules.level),
    }


def _opponent(comparison_step: Step, scores: Artifact, scored: ScoredVersion) -> Opponent:
    version = scored.registered.version
    comparison = None
    if version.package_digest != scores.facts["package"]:
        found = comparison_step(scores, scored.evaluation, scored.registered.as_input)
        comparison = dict(found.facts)
    return Opponent(
        version.version,
        version.train_digest,
        scored.evaluation.facts["metrics"],
        comparison,
    )


compare_reference = replace(
    compare_champion,
    name="compare_reference",
    inputs=("evaluate", "evaluate_reference", "registry"),
)


def too_few_images(rules: Gate, validated: Artifact) -> str | None:
    """A sentence if the test split is too small for the margin of the gate; else None.

    Args:
        rules: The metric, the margin and the level.
        validated: The output of `validate`.
    """
    facts, metric = validated.facts, rules.metric
    units = facts["test_units"]
    if not rules.margin or split_name(metric)[1] not in (None, *units):
        return None
    smallest = smallest_margin(metric, units_of_metric(metric, units), rules.level)
    if smallest is None or smallest <= rules.margin:
        return None
    return describe_margin(rules, units, facts["rows"]["test"], facts["test_groups"])
