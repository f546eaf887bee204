"""The fuzzer finds what it is there to find; `make fuzz` runs it."""

from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz, configs, datasets, images
from tests.fuzz.case import Case, make_cases

ANSWERS = 'print(\'{"verdict": "accepted"}\', flush=True); time.sleep(60)'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("time.sleep(60)", "hangs"),
        ("much = bytearray(b'x' * 300_000_000); time.sleep(60)", "takes "),
        ("sys.exit(3)", "the process has died"),
        (ANSWERS, None),
    ],
)
def test_a_process_that_breaks_a_limit_is_ended(monkeypatch, program, message):
    monkeypatch.setattr(fuzz, "MEMORY", 200_000_000)
    monkeypatch.setattr(fuzz, "SECONDS", 3 if message == "hangs" else 60)
    worker = fuzz.Worker(Path.cwd(), ("-c", f"import sys, time; {program}"))
    answer = worker.ask(Path("a.png"))
    if message is None:
        assert answer == {"verdict": "accepted"}
        worker.end()
    else:
        assert answer["message"].startswith(message)
    assert worker.process is None


@pytest.mark.parametrize(
    ("good", "accepted", "unreadable", "fault"),
    [
        (True, True, "", ""),
        (True, False, "", "refused, but is good: because"),
        (True, True, "truncated", "accepted, but truncated"),
        (False, False, "", ""),
        (False, True, "", "accepted, but cannot be good"),
        (None, True, "", ""),
        (None, False, "", ""),
        (None, True, "truncated", "accepted, but truncated"),
    ],
)
def test_a_verdict_is_judged(good, accepted, unreadable, fault):
    assert Case("kind", "name", b"", good).fault(accepted, unreadable, "because") == fault


@pytest.mark.parametrize("makers", [images.MAKERS, datasets.MAKERS, configs.MAKERS])
def test_a_seed_gives_the_same_cases_again(makers):
    cases = make_cases("x", makers, len(makers), seed=1)
    assert {case.kind for case in cases} == {f"x: {kind}" for kind in makers}
    assert make_cases("x", makers, len(makers), seed=1) == cases
    assert make_cases("x", makers, len(makers), seed=2) != cases
