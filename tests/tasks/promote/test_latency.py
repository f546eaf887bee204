"""The bound on how long a single image takes: what is measured, and what it decides."""

from dataclasses import asdict, replace

import pytest

from retrain.registry import decisions, packages, versions
from retrain.workload import Gate
from tasks.promote import check, outcome
from tests.tasks.promote.conftest import FAST, approve, champion, decide, history, train

BOUND = Gate(max_latency_ms=50)
MANUAL = Gate(max_latency_ms=50, approval="manual")
SLOW = "p95 of a single image <= 50 ms fails with 80"


@pytest.fixture
def takes(monkeypatch):
    """Sets what the check measures, without the seconds to load a version."""

    def measured(p95: float) -> None:
        monkeypatch.setattr(check, "check_answers", lambda *_: replace(FAST, p95=p95))

    measured(2.0)
    return measured


def test_a_slow_package_is_measured_in_a_process_of_its_own_and_rejected(
    project, run, one, in_another_package
):
    trained = train(project, seed=1)
    first = '        if "image" not in model_input:\n'
    sleeps = f"        __import__('time').sleep(0.02)\n{first}"
    scores = in_another_package(trained, "serving.py", first, sleeps)
    facts = run(trained, "better", 1, scores, rules=Gate(max_latency_ms=20))
    found = versions.get(project, "toy", 2).latency
    assert asdict(found) == facts["latency"]
    assert 20 <= found.p50 <= found.p95
    assert (found.calls, found.device) == (20, "cpu")
    assert (facts["aliases"], champion(project)) == ([], 1)


def test_the_percentiles_are_by_nearest_rank():
    seconds = [each / 2000 for each in range(50, 0, -1)]
    found = check.summarise({"seconds": seconds, "threads": 1, "device": "cpu"})
    assert (found.p50, found.p95, found.calls) == (12.5, 24, 50)
    assert str(found) == "p95 of a single image: 24.0 ms (p50 12.5 ms; 50 calls, 1 thread, cpu)"


def test_a_package_above_the_bound_is_measured_once_more_and_the_better_one_counts(monkeypatch):
    measured = [replace(FAST, p95=80.0), replace(FAST, p95=60.0), replace(FAST, p95=9.0)]
    monkeypatch.setattr(check, "_asked", lambda *_: measured.pop(0))
    assert check.check_answers(None, None, None, 50).p95 == 60.0
    assert check.check_answers(None, None, None, 50).p95 == 9.0


def test_what_is_too_slow_is_rejected_with_a_sentence_and_nothing_moves(
    project, run, one, look, takes, monkeypatch, caplog
):
    slow = train(project, 1)
    takes(80)
    before = versions.champion(project, "toy")
    facts = run(slow, "better", 1, rules=BOUND)
    assert (facts["version"], facts["aliases"]) == (2, [])
    assert "withheld" not in facts
    assert versions.champion(project, "toy") == versions.reference(project, "toy") == before
    rejected = versions.get(project, "toy", 2)
    assert rejected.broken is None
    assert f"{rejected.latency}." in packages.read_card(project, rejected).splitlines()
    written = decisions.read(project, "toy")
    entry = written.entries[-1]
    assert (entry.action, entry.verdict, entry.reason) == ("rejected", "better", SLOW)
    *_, rule = decisions.document_of(project, written, entry)["rules"]
    assert (rule["rule"], rule["value"]) == ("p95 of a single image <= 50 ms", 80)
    assert not rule["passed"]

    decision = decide("better", 1).facts
    told = {"champion": decision["champion"], "decision": decision, "model": facts}
    told |= {"promote": True, "metrics": {}}
    assert outcome.verdict(told) == (
        "Rejected",
        f"toy version 2 is rejected: {SLOW}. Version 1 stays the champion.",
    )
    outcome.show(told)
    assert "p95 of a single image: 80.0 ms" in caplog.text

    with monkeypatch.context() as patched:  # the same run again loads and enters nothing
        patched.setattr(check, "check_answers", None)
        assert run(slow, "better", 1, rules=BOUND) == facts
        assert look(slow, "better", 1, rules=BOUND) == facts
    assert [entry.action for entry in history(project)] == ["promoted", "rejected"]
    raised = Gate(max_latency_ms=100)
    assert look(slow, "better", 1, rules=raised) is None
    assert run(slow, "better", 1, rules=raised)["aliases"] == ["champion", "reference"]


def test_what_is_too_slow_by_the_time_of_its_approval_still_waits(project, run, takes):
    run(train(project), "first", rules=MANUAL)
    takes(80)
    with pytest.raises(ValueError, match=f"still waits: {SLOW}"):
        approve(project, "it looks right")
    assert champion(project) is None
    assert versions.get(project, "toy", 1).broken is None
    takes(40)
    assert approve(project, "it looks right")["version"] == champion(project) == 1
