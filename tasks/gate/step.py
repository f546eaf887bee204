"""Decides whether the model may go to production: by bounds, and by comparison with other models.

The model is compared with the champion, which is in production, and with the reference, which is
the best so far. All were scored on the same test split and as they are served, whatever data, code
and image size they come from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Opponent, Opponents
from tasks.data.slices import Slices
from tasks.gate.rules import (
    Rule,
    about_classes,
    bounds,
    check,
    comparisons,
    is_judged,
    new_classes,
    per_class,
    same_training,
    sentences,
)


@step(inputs=("evaluate", "opponents", "slices"), reads=("gate",), cached=False, hours=1)
def gate(
    rules: Gate, scores: Artifact, opponents: Opponents, slices: Slices, workspace: Workspace
) -> Facts:
    """Decides whether a model may go to production.

    A challenger from the same training as the champion, whose package differs (its code was fixed,
    or its precision changed), is the same model: it need not be compared image by image.

    Returns:
        `passed`; `verdict`: `first`, `better`, `not worse`, `worse`, `cannot tell`, `not
        comparable`, `repackaged` (the champion's training in another package, not worse), `champion
        already` (the same package), or `below bounds`;
        `rules`: for each, the rule in words, the value, the bound and whether it passed;
        `champion`: its version and metrics, or None; `comparisons`, what was found, by role;
        `slices`, as the step `slice` gives them, and whether each was `judged`;
        `says`, the same for a person; `new_classes`, those that the champion does not know;
        `test_images`, their identity; and `reference`, whether the model becomes the reference if
        it is promoted.
    """
    table = per_class(scores)
    made = bounds(rules, scores, table, slices)
    parts = [each | {"judged": is_judged(rules, each)} for each in slices.all]
    decision = _decide(rules, scores, opponents, made)
    return decision | {
        "says": decision["says"] + about_classes(table, opponents),
        "new_classes": new_classes(table, opponents),
        "slices": parts,
    }


def _decide(rules: Gate, scores: Artifact, opponents: Opponents, made: list[Rule]) -> Facts:
    """The decision, given the bounds."""
    within = _all_passed(made)
    champion = opponents.champion
    if champion is None:
        verdict = "first" if within else "below bounds"
        return _decision(scores, opponents, made, verdict, becomes=True)
    if champion.package_digest == scores.facts["package"]:
        return _decision(scores, opponents, made, "champion already") | {"passed": within}
    if champion.comparison is None:
        made.append(same_training(rules, scores, champion))
        verdict = "repackaged" if made[-1]["passed"] else "worse"
        becomes = opponents.reference is None
    else:
        verdict, found = _compared(rules, scores, opponents)
        made += found
        best = opponents.reference or champion
        becomes = _outcome(rules, best) == "better"
    if not within:
        verdict = "below bounds"
    passed = verdict in PASSES or verdict in rules.promotes
    says = [
        sentence
        for role, opponent in _compared_ones(opponents).items()
        for sentence in sentences(rules, role, opponent)
    ]
    return _decision(scores, opponents, made, verdict, becomes=becomes) | {
        "passed": passed,
        "says": says,
    }


PASSES: tuple[str, ...] = ("first", "repackaged")


def _compared(rules: Gate, scores: Artifact, opponents: Opponents) -> tuple[str, list[Rule]]:
    """The verdict of the comparisons, and their rules.

    The reference need not be surpassed, whatever is configured: else nothing could be promoted
    after a rollback.
    """
    allowed = {"champion": rules.promotes, "reference": ("not worse", "better", *rules.promotes)}
    made: list[Rule] = []
    verdict = None
    for role, opponent in _compared_ones(opponents).items():
        outcome = _outcome(rules, opponent)
        made += comparisons(rules, scores, role, opponent, allowed[role])
        if verdict is None or outcome not in allowed[role]:
            verdict = outcome
        if outcome not in allowed[role]:
            break
        if not _all_passed(made):
            verdict = "worse"  # in one of `gate.no_worse`
            break
    assert verdict is not None
    return verdict, made


def _outcome(rules: Gate, opponent: Opponent) -> str | None:
    if opponent.comparison is None:  # the same training
        return "not worse"
    found = opponent.comparison["metrics"]
    if rules.metric not in found:  # of a class with too few images
        return "cannot tell" if found else "not comparable"
    return str(found[rules.metric]["outcome"])


def _compared_ones(opponents: Opponents) -> Mapping[str, Opponent]:
    """The models that were compared image by image, by their role."""
    roles = {"champion": opponents.champion, "reference": opponents.reference}
    return {role: each for role, each in roles.items() if each and each.comparison}


def _all_passed(made: Sequence[Rule]) -> bool:
    return all(rule["passed"] is not False for rule in made)


def _decision(
    scores: Artifact,
    opponents: Opponents,
    made: Sequence[Rule],
    verdict: str,
    *,
    becomes: bool = False,
) -> dict[str, Any]:
    champion = opponents.champion
    return {
        "passed": verdict in PASSES,
        "verdict": verdict,
        "rules": list(made),
        "champion": champion and {"version": champion.version, "metrics": dict(champion.metrics)},
        "comparisons": {
            role: {"version": each.version, **(each.comparison or {})}
            for role, each in _compared_ones(opponents).items()
        },
        "says": [],
        "test_images": scores.facts["test_images"],
        "reference": becomes,
    }


gate.checks(check)
gate.dry_runs(gate.function)  # it changes nothing
