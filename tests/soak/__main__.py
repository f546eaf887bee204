"""Ends runs at random moments, and checks that the next run brings everything to its end.

    python -m tests.soak 500 --jobs 2 --seed 1

A trial has a clone of the project for itself. A run is ended at a moment drawn over the length of
an undisturbed run, in one of four ways; in one of four trials another run is ended after it. Then
a run goes to its end. Half of the trials start from nothing, the others with a champion, which the
run challenges. The exit code is 1 if a trial failed; the folders of those are kept.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.flows.conftest import Clone, copy_clone, make_clone
from tests.soak.outcome import Outcome, faults, outcome_of
from tests.soak.processes import MARK, Run, end_all, left_over, start

EPOCHS = {"first": 4, "second": 8}
END_SECONDS = 60.0  # for a run to end after SIGTERM or Ctrl-C
RUN_SECONDS = 600.0
LONGER = 1.1  # moments are drawn over the length of an undisturbed run, and a little more


@dataclass(frozen=True)
class Reference:
    """A state that trials start from, and an undisturbed run from there.

    Attributes:
        name: `first` or `second`.
        start: The clone that trials copy.
        seconds: The length of the run.
        outcome: What it led to.
    """

    name: str
    start: Clone
    seconds: float
    outcome: Outcome


@dataclass(frozen=True)
class Ending:
    """How a run is ended, and when.

    Attributes:
        way: A key of `WAYS`.
        after: In seconds from its start.
    """

    way: str
    after: float


@dataclass(frozen=True)
class Trial:
    """A trial, drawn from the seed."""

    number: int
    reference: Reference
    endings: tuple[Ending, ...]


def main() -> int:
    """Runs the trials and prints a line for each, and a table.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("trials", type=int)
    parser.add_argument("--jobs", type=int, default=2, help="trials at the same time (2)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="retrain-soak-"))
    references = _references(root, options.jobs)
    rng = random.Random(options.seed)
    trials = [_draw(number, references, rng) for number in range(options.trials)]
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            results = list(pool.map(partial(_run_trial, root), trials))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all(str(root))
            raise
    _print_table(trials, results)
    if not any(results):
        shutil.rmtree(root)
        return 0
    print(f"The folders of the failed trials are in {root}.")
    return 1


def _references(root: Path, jobs: int) -> list[Reference]:
    """Makes the two states to start from, and measures runs from them, at the trials' load."""
    empty = make_clone(root / "empty", "")
    first = _reference("first", empty, root, jobs)
    champion = Clone(root / "first-0", "")
    return [first, _reference("second", champion, root, jobs)]


def _reference(name: str, begin: Clone, root: Path, jobs: int) -> Reference:
    clones = [copy_clone(begin, root / f"{name}-{number}") for number in range(jobs)]
    began = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(lambda clone: _to_its_end(name, clone), clones))
    seconds = time.monotonic() - began
    for clone, run in zip(clones, runs, strict=True):
        assert run.returncode == 0, f"{clone.root}: {run.output}"
    outcomes = [outcome_of(clone, run.output) for clone, run in zip(clones, runs, strict=True)]
    assert all(outcome == outcomes[0] for outcome in outcomes), outcomes
    print(f"{name}: {seconds:.1f} s undisturbed; {outcomes[0]}", flush=True)
    return Reference(name, begin, seconds, outcomes[0])


def _draw(number: int, references: list[Reference], rng: random.Random) -> Trial:
    reference = references[number % len(references)]
    endings = tuple(
        Ending(rng.choice(list(WAYS)), rng.uniform(0, LONGER * reference.seconds))
        for _ in range(1 if rng.random() < 0.75 else 2)
    )
    return Trial(number, reference, endings)


def _run_trial(root: Path, trial: Trial) -> list[str]:
    """Runs a trial and prints its line.

    Returns:
        What is wrong after it.
    """
    began, name = time.monotonic(), trial.reference.name
    clone = copy_clone(trial.reference.start, root / f"trial-{trial.number}")
    wrong, over = [], 0
    for ending in trial.endings:
        was_over, fault = _end_run(name, clone, ending)
        over += was_over
        wrong += [fault] if fault else []
    run = _to_its_end(name, clone)
    if run.returncode == 0:
        wrong += faults(clone, outcome_of(clone, run.output), trial.reference.outcome)
    else:
        wrong.append(f"the last run ended with {run.returncode}: {run.output}")
    if left := left_over(str(clone.root)):
        wrong.append(f"left over: {left}")
        end_all(str(clone.root))
    endings = ", ".join(f"{ending.way} at {ending.after:.1f} s" for ending in trial.endings)
    verdict = "; ".join(wrong) or "ok"
    if over:  # the machine was less busy than when the length was measured
        verdict += f" ({over} of {len(trial.endings)} runs were over before)"
    took = time.monotonic() - began
    print(f"{trial.number:4} {name:<6} {endings:<44} {took:5.1f} s  {verdict}", flush=True)
    if not wrong:
        shutil.rmtree(clone.root)
    return wrong


def _end_run(name: str, clone: Clone, ending: Ending) -> tuple[bool, str | None]:
    """Starts a run and ends it; returns whether it was over before, and what went wrong."""
    run = _start(name, clone)
    if run.wait(ending.after) is not None:
        return True, None
    WAYS[ending.way](run)
    # Python drops the exception of Ctrl-C where nothing can raise it; a person presses once more.
    if run.wait(END_SECONDS) is None:
        WAYS[ending.way](run)
        if run.wait(END_SECONDS) is None:
            run.end_all()
            return False, f"it did not end within {2 * END_SECONDS:.0f} s after {ending.way}"
    return False, None


def _to_its_end(name: str, clone: Clone) -> Run:
    run = _start(name, clone)
    if run.wait(RUN_SECONDS) is None:
        run.end_all()
    return run


def _start(name: str, clone: Clone) -> Run:
    command = [sys.executable, "-m", "retrain.cli", "train", "vit", "--json"]
    settings = [f"train.epochs={EPOCHS[name]}", "scale.checkpoint_seconds=0.1"]
    command += ["--promote", *(word for setting in settings for word in ("--set", setting))]
    return start(command, clone.root, clone.environment | {MARK: str(clone.root)})


WAYS: dict[str, Callable[[Run], None]] = {
    "SIGKILL to all": Run.end_all,
    "SIGKILL": lambda run: run.process.send_signal(signal.SIGKILL),
    "SIGTERM": lambda run: run.process.send_signal(signal.SIGTERM),
    "Ctrl-C": lambda run: run.signal_group(signal.SIGINT),
}


def _print_table(trials: list[Trial], results: list[list[str]]) -> None:
    run: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for trial, wrong in zip(trials, results, strict=True):
        for ending in trial.endings:
            kind = (trial.reference.name, ending.way)
            run[kind] += 1
            failed[kind] += bool(wrong)
    print(f"\n{'start':<8}{'ended by':<16}{'runs':>6}{'in failed trials':>18}")
    for name, way in sorted(run):
        print(f"{name:<8}{way:<16}{run[name, way]:>6}{failed[name, way]:>18}")
    print(f"{len(trials)} trials, {sum(map(bool, results))} failed")


if __name__ == "__main__":
    sys.exit(main())
