"""The comment of a run on a pull request: what Markdown makes of it, and what the run has left."""

import pytest
from markdown_it import MarkdownIt

from flows.pages import publish
from tests.flows.pages.test_runs import with_texts

COUNT = 60  # classes, rules, lines: more than a screen
HOSTILE = "a|b`c\n# <img src=x> [d](e)\n- f\\" * COUNT


def elements(markdown):
    """What GitHub makes of a Markdown text: the types of its blocks and of what is in them."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)
    return [each.type for token in tokens for each in (token, *(token.children or ()))]


def content(**changes):
    """What the comment of a training shows that has changed much."""
    rule = {"rule": "accuracy >= 0.9", "passed": False, "value": 0.5}
    rows = {"train": 1200, "val": 10, "test": 20}
    document = {
        "workload": "pr-7",
        "flow": "train",
        "run": "0123456789",
        "time": "2026-11-28T10:00:00+00:00",
        "outcome": "text",
        "state": "Rejected",
        "metrics": {"accuracy": 0.5, "rows": 20},
        "champion": {"version": 3, "metrics": {"accuracy": 0.75, "rows": 20}},
        "decision": {"rules": [rule] * COUNT},
        "model": {"version": 4},
        "data": {"rows": rows, "quarantined": 1},
    }
    before = {"rows": rows | {"train": 900}, "quarantined": 0}
    classes = [("text", None, 7, None, 0.5)] * COUNT
    return {"document": document | changes, "before": before, "classes": classes}


@pytest.mark.parametrize(
    "changes",
    [{}, {"champion": None}, {"error": "text\n" * COUNT, "refused": True, "decision": None}],
)
def test_a_comment_is_at_most_a_screen_and_no_name_changes_what_it_is_made_of(changes):
    harmless = content(**changes)
    hostile = with_texts(harmless, HOSTILE, {"time", "run", "workload", "state"})
    texts = [publish.render("comment.md", each) for each in (harmless, hostile)]
    assert elements(texts[0]) == elements(texts[1])
    assert "table_open" in elements(texts[0])
    assert all(len(text.splitlines()) <= 40 for text in texts)
    assert "And 55 more classes." in texts[0]


@pytest.mark.slow
def test_a_pull_request_is_commented_and_changes_nothing_that_is_served(clone, first):
    served = [clone.json(command, "vit") for command in ("status", "history")]
    files = (clone.root / "mlruns" / "vit").rglob("packages/**/*")
    packages = {file: file.stat().st_mtime_ns for file in files}
    assert packages
    clone.run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "as in CI")
    own = ("train", "vit", "--as", "pr-7", "--strict")
    outcome = clone.json(*own)["outcome"]
    text = clone.retrain("report", "pr-7", "--markdown").stdout
    assert text.startswith(f"### pr-7: Promoted\n\n{outcome}\n")
    clone.json(*own, "--set", "checks.min_side=9", code=1)
    refused = clone.json("report", "pr-7", "--markdown")["markdown"]
    assert refused.startswith("### pr-7: Refused\n")
    assert "images with a side below checks.min_side 9" in refused
    assert [clone.json(command, "vit") for command in ("status", "history")] == served
    assert {file: file.stat().st_mtime_ns for file in packages} == packages
