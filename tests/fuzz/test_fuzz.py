"""The fuzzer finds what it is there to find; `make fuzz` runs it."""

import os
import time
from pathlib import Path

import pytest

from tests.fuzz import configs, datasets, images
from tests.fuzz.__main__ import _judge
from tests.fuzz.case import Case, make_cases
from tests.fuzz.limits import Limited


@pytest.mark.parametrize(
    ("program", "broken"),
    [
        ("import time; time.sleep(60)", "hangs"),
        ("import time; much = bytearray(b'x' * 300_000_000); time.sleep(60)", "takes 0."),
        ("print()", ""),
    ],
)
def test_a_process_that_breaks_a_limit_is_ended(program, broken):
    limited = Limited(["-c", program], Path.cwd(), os.environ, memory=200_000_000)
    limited.deadline = time.monotonic() + (3 if broken == "hangs" else 30)
    limited.process.wait(40)
    limited.end()
    assert limited.broken.startswith(broken)
    assert bool(limited.broken) == bool(broken)


@pytest.mark.parametrize(
    ("good", "accepted", "unshowable", "failure"),
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
def test_a_verdict_is_judged(good, accepted, unshowable, failure):
    case = Case("kind", "name", b"", good)
    assert _judge(case, accepted, unshowable, "refused", "because").failure == failure


@pytest.mark.parametrize(
    "makers", [images.MAKERS, datasets.MAKERS, configs.MAKERS], ids=["images", "data", "configs"]
)
def test_a_seed_gives_the_same_cases_again(makers):
    count = len(makers)
    cases = make_cases("x", makers, count, seed=1)
    assert {case.kind for case in cases} == {f"x: {kind}" for kind in makers}
    assert make_cases("x", makers, count, seed=1) == cases
    assert make_cases("x", makers, count, seed=2) != cases
