"""Decides whether the model may go to production: by bounds, and by comparison with other models.

The model is compared with the champion, which is in production, and with the reference, which is
the best so far. All were scored on the same test split and as they are served, whatever data, code
and image size they come from.
"""

from collections.abc import Mapping, Sequence

from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Opponent, Opponents
from tasks.data.slices import Slices
from tasks.gate.rules import (
    Rule,
    bounds,
    check,
    comparisons,
    is_judged,
    per_class,
    same_training,
)
from tasks.gate.wording import about_classes, new_classes, sentences

ALREADY = "champion already"
PASSES = ("first", "repackaged", ALREADY)  # within the bounds, beside what `promotes` names


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
    bounded = bounds(rules, scores, table, slices)
    within, champion = _all_passed(bounded), opponents.champion
    verdict, compared, becomes = _verdict(rules, scores, opponents)
    passed = within and verdict in (*PASSES, *rules.promotes)
    says = []
    if verdict != ALREADY:
        for role, opponent in _compared_ones(opponents).items():
            says += sentences(rules, role, opponent)
        verdict = verdict if within else "below bounds"
    return {
        "passed": passed,
        "verdict": verdict,
        "rules": bounded + compared,
        "champion": champion and {"version": champion.version, "metrics": dict(champion.metrics)},
        "comparisons": {
            role: {"version": opponent.version, **(opponent.comparison or {})}
            for role, opponent in _compared_ones(opponents).items()
        },
        "says": says + about_classes(table, opponents),
        "test_images": scores.facts["test_images"],
        "reference": becomes,
        "new_classes": new_classes(table, opponents),
        "slices": [part | {"judged": is_judged(rules, part)} for part in slices.all],
    }


def _verdict(rules: Gate, scores: Artifact, opponents: Opponents) -> tuple[str, list[Rule], bool]:
    """The verdict within the bounds, its rules, and whether the model becomes the reference."""
    champion, reference = opponents.champion, opponents.reference
    if champion is None:
        return "first", [], True
    if champion.package_digest == scores.facts["package"]:
        return ALREADY, [], False
    if champion.comparison is None:
        rule = same_training(rules, scores, champion)
        return "repackaged" if rule["passed"] else "worse", [rule], reference is None
    verdict, made = _compared(rules, scores, opponents)
    return verdict, made, _outcome(rules, reference or champion) == "better"


def _compared(rules: Gate, scores: Artifact, opponents: Opponents) -> tuple[str, list[Rule]]:
    """The verdict of the comparisons, and their rules.

    The reference need not be surpassed, whatever is configured: else nothing could be promoted
    after a rollback.
    """
    allowed = {"champion": rules.promotes, "reference": ("not worse", "better", *rules.promotes)}
    made: list[Rule] = []
    outcomes = []
    for role, opponent in _compared_ones(opponents).items():
        outcomes.append(_outcome(rules, opponent))
        made += comparisons(rules, scores, role, opponent, allowed[role])
        if outcomes[-1] not in allowed[role]:
            return outcomes[-1], made
        if not _all_passed(made):  # by one of `gate.no_worse`
            return "worse", made
    return outcomes[0], made


def _outcome(rules: Gate, opponent: Opponent) -> str:
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


gate.checks(check)
gate.dry_runs(gate.function)  # it changes nothing
