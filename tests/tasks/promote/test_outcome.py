"""What became of a model, in one word and in one sentence, from the document of its run."""

import pytest

from tasks.promote import outcome

RULE = {"rule": "accuracy >= 0.9", "value": 0.87654, "bound": 0.9, "passed": False}
FOUND = {"metrics": {"accuracy": {"difference": 0.0125, "low": -0.003, "high": 0.028}}}


def document(verdict, *, first=False, passed=True, promote=True, rules=(), **model):
    decision = {"verdict": verdict, "passed": passed, "rules": rules, "comparisons": {}}
    decision["new_classes"] = []
    if verdict == "not worse":
        decision["comparisons"] = {"champion": FOUND}
    champion = None if first else {"version": 3, "metrics": {}}
    version = {"name": "toy", "version": 4, **model}
    return {"decision": decision, "champion": champion, "model": version, "promote": promote}


@pytest.mark.parametrize(
    ("run", "state", "sentence"),
    [
        (document("first", first=True), "Promoted", "toy version 4 is the first champion."),
        (
            document("not worse"),
            "Promoted",
            "toy version 4 is the new champion, in place of version 3: it is not worse than the "
            "champion, except by less than the margin; accuracy +1.2 points (-0.3 to +2.8).",
        ),
        (
            document("repackaged"),
            "Promoted",
            "toy version 4 is the new champion, in place of version 3: it is the training of the "
            "champion in a new package.",
        ),
        (
            document("below bounds", passed=False, rules=[RULE]),
            "Rejected",
            "toy version 4 is rejected: accuracy >= 0.9 fails with 0.8765. Version 3 stays the "
            "champion.",
        ),
        (
            document("cannot tell", passed=False, first=True),
            "Rejected",
            "toy version 4 is rejected: it cannot be told whether it is better than the champion. "
            "There is no champion yet.",
        ),
        (
            document("better", withheld="version 4 was rejected on 2026-11-24: blurred"),
            "Rejected",
            "toy version 4 is not promoted: version 4 was rejected on 2026-11-24: blurred; it is "
            "promoted only with --promote.",
        ),
        (
            document("better", waiting=True),
            "Waiting",
            "toy version 4 passes the gate and waits for approval: retrain approve toy --reason "
            "WHY, or retrain reject toy --reason WHY.",
        ),
        (
            document("better", promote=False),
            "Compared",
            "toy version 4 would be the new champion, in place of version 3; add --promote to "
            "promote it.",
        ),
        (
            document("first", first=True, promote=False),
            "Compared",
            "toy version 4 would be the first champion; add --promote to promote it.",
        ),
        (
            document("first", first=True, promote=False, passed=False, rules=[RULE]),
            "Compared",
            "toy version 4 would be rejected: accuracy >= 0.9 fails with 0.8765. There is no "
            "champion yet.",
        ),
        (
            document("champion already"),
            "Unchanged",
            "This model is already the champion, toy version 4.",
        ),
    ],
)  # fmt: skip
def test_a_run_ends_in_one_state_with_a_plain_sentence(run, state, sentence):
    assert outcome.verdict(run) == (state, sentence)


def test_classes_that_the_champion_does_not_know_are_named_with_it():
    run = document("first", first=True)
    run["decision"]["new_classes"] = [{"label": "ant", "rows": 12, "recall": 0.5}]
    assert outcome.verdict(run).sentence.endswith(
        "champion. New classes: ant (12 test images, recall 0.50)."
    )
