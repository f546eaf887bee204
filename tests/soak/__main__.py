"""Ends runs at random moments, and checks that the next run brings everything to its end.

    python -m tests.soak 500 --jobs 2 --seed 1

A trial has a clone of the project for itself. A run is ended at a moment drawn over the length of
an undisturbed run, in one of four ways; in one of four trials another run is ended after it, and in
one of four a file of the store is damaged then. Then a run goes to its end. The length follows the
machine, which may be more or less busy later; a trial whose runs were all over before their moments
begins again. Half of the trials start from nothing, the others with a champion, which the run
challenges. In half of each, runs start a Prefect server of their own; in the others they use one
that is up, as after `make up`. The exit code is 1 if a trial failed; the folders of those are
kept.
"""

import argparse
import compileall
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tests.flows.conftest import Clone, copy_clone, make_clone
from tests.soak.outcome import Outcome, damage_a_file, faults, going_on, outcome_of, own_database
from tests.soak.processes import Run, end_all, forget, left_over, start, stop
from tests.soak.servers import Server, servers

EPOCHS = {"first": 4, "second": 8}
SERVERS = ("own", "up")
END_SECONDS = 60.0  # for a run to end after SIGTERM or Ctrl-C
RUN_SECONDS = 600.0
LONGER = 1.1  # moments are drawn over the length of an undisturbed run, and a little more
ATTEMPTS = 5  # at a trial, until a run is ended before it is over


@dataclass(frozen=True)
class Kind:
    """A kind of trial.

    Attributes:
        start: `first`: from nothing; `second`: with a champion.
        server: `own`: each run starts a Prefect server; `up`: they use one that is up.
    """

    start: str
    server: str

    def __str__(self) -> str:
        return f"{self.start:<7}{self.server:<4}"


@dataclass(frozen=True)
class Reference:
    """A state that trials start from, and an undisturbed run from there.

    Attributes:
        kind: The kind of the trials.
        start: The clone that trials copy.
        outcome: What the run led to.
        length: Of such a run, as far as is known.
    """

    kind: Kind
    start: Clone
    outcome: Outcome
    length: "Length"


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        after: In seconds from its start.
        over: Whether it was over by itself.
        fault: What went wrong, if anything.
    """

    after: float
    over: bool
    fault: str | None = None


@dataclass
class Length:
    """How long an undisturbed run takes now, in seconds."""

    seconds: float

    def learn(self, ended: Ended) -> None:
        """Corrects the length by a run that was over sooner, or was still going on later."""
        better = min if ended.over else max
        self.seconds = better(self.seconds, ended.after)


@dataclass(frozen=True)
class Ending:
    """How a run is ended, and when.

    Attributes:
        way: A key of `WAYS`.
        moment: A fraction of the length of an undisturbed run, after its start.
    """

    way: str
    moment: float


@dataclass(frozen=True)
class Trial:
    """A trial, drawn from the seed.

    Attributes:
        number: Of the trial.
        reference: What it starts from, and has to lead to.
        endings: Of its runs but the last.
        damage: Which file of the store is damaged, as a fraction of all; None if none is.
    """

    number: int
    reference: Reference
    endings: tuple[Ending, ...]
    damage: float | None


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
    # A shell lets its background jobs ignore Ctrl-C, and the runs would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="retrain-soak-"))
    empty = make_clone(root / "empty", "")
    compileall.compile_dir(empty.root, quiet=1)  # once, not in each copy
    with servers(empty, root, options.jobs) as up, ThreadPoolExecutor(options.jobs) as pool:
        try:
            references = _references(empty, root, up, pool)
            rng = random.Random(options.seed)
            trials = [_draw(number, references, rng) for number in range(options.trials)]
            free: SimpleQueue[Server] = SimpleQueue()
            for server in up:
                free.put(server)
            results = list(pool.map(partial(_run_trial, root, free), trials))
        except BaseException:  # Ctrl-C too; the threads end when they cannot start a run
            pool.shutdown(wait=False, cancel_futures=True)
            stop(root)
            raise
    _print_table(trials, results)
    if not any(results):
        shutil.rmtree(root)
        return 0
    print(f"The folders of the failed trials are in {root}.")
    return 1


def _references(
    empty: Clone, root: Path, up: Sequence[Server], pool: ThreadPoolExecutor
) -> list[Reference]:
    """Makes the states to start from, and measures runs from them, at the trials' load."""
    references = []
    for server in SERVERS:
        begin = empty
        for name in EPOCHS:
            kind = Kind(name, server)
            references.append(_reference(kind, begin, root, up, pool))
            begin = Clone(_folder(root, kind, 0), "")  # with a champion
    return references


def _reference(
    kind: Kind, begin: Clone, root: Path, up: Sequence[Server], pool: ThreadPoolExecutor
) -> Reference:
    clones = [_copy(kind, begin, _folder(root, kind, job), server) for job, server in enumerate(up)]
    began = time.monotonic()
    runs = list(pool.map(partial(_to_its_end, kind), clones))
    seconds = time.monotonic() - began
    for clone, run in zip(clones, runs, strict=True):
        assert run.returncode == 0, f"{clone.root}: {run.output}"
    outcomes = [outcome_of(clone, run.output) for clone, run in zip(clones, runs, strict=True)]
    assert all(outcome == outcomes[0] for outcome in outcomes), outcomes
    print(f"{kind}: {seconds:.1f} s undisturbed; {outcomes[0]}", flush=True)
    return Reference(kind, begin, outcomes[0], Length(seconds))


def _folder(root: Path, kind: Kind, job: int) -> Path:
    return root / f"{kind.start}-{kind.server}-{job}"


def _copy(kind: Kind, begin: Clone, root: Path, server: Server) -> Clone:
    """Copies a clone; its runs use the server if their kind does."""
    return replace(copy_clone(begin, root), api=server.api if kind.server == "up" else "")


def _draw(number: int, references: list[Reference], rng: random.Random) -> Trial:
    reference = references[number % len(references)]
    endings = tuple(
        Ending(rng.choice(list(WAYS)), rng.uniform(0, LONGER))
        for _ in range(1 if rng.random() < 0.75 else 2)
    )
    return Trial(number, reference, endings, rng.random() if rng.random() < 0.25 else None)


def _run_trial(root: Path, free: "SimpleQueue[Server]", trial: Trial) -> list[str]:
    """Runs a trial and prints its line.

    Args:
        root: The folder of all clones.
        free: The servers that no other trial uses.
        trial: The trial.

    Returns:
        What is wrong after it.
    """
    began, kind = time.monotonic(), trial.reference.kind
    server = free.get_nowait()
    length = trial.reference.length
    for attempt in range(ATTEMPTS):
        clone = _copy(kind, trial.reference.start, root / f"trial-{trial.number}", server)
        database = server.database if clone.api else own_database(clone)
        before = going_on(database) if clone.api else {}
        endings = [
            _end_run(kind, clone, ending.way, ending.moment * length.seconds)
            for ending in trial.endings
        ]
        if trial.damage is not None:
            damage_a_file(clone, trial.damage)
        length.learn(endings[0])  # the runs after it are shorter
        if attempt == ATTEMPTS - 1 or not all(ended.over for ended in endings):
            break
        forget(clone.root)
        shutil.rmtree(clone.root)
    wrong = [ended.fault for ended in endings if ended.fault]
    run = _to_its_end(kind, clone)
    if run.returncode == 0:
        outcome = outcome_of(clone, run.output)
        damaged = trial.damage is not None
        wrong += faults(clone, outcome, trial.reference.outcome, database, before, damaged)
    else:
        wrong.append(f"the last run ended with {run.returncode}: {run.output}")
    if left := left_over(clone.root):
        wrong.append(f"left over: {left}")
        end_all(clone.root)
    forget(clone.root)
    free.put(server)
    said = ", ".join(
        f"{ending.way} {'after it was over' if ended.over else f'at {ended.after:.1f} s'}"
        for ending, ended in zip(trial.endings, endings, strict=True)
    )
    said += ", a file damaged" * (trial.damage is not None)
    took, verdict = time.monotonic() - began, "; ".join(wrong) or "ok"
    print(f"{trial.number:4} {kind} {said:<44} {took:5.1f} s  {verdict}", flush=True)
    if not wrong:
        shutil.rmtree(clone.root)
    return wrong


def _end_run(kind: Kind, clone: Clone, way: str, after: float) -> Ended:
    """Starts a run and ends it after some seconds."""
    began = time.monotonic()
    run = _start(kind, clone)
    if run.wait(after) is not None:
        return Ended(time.monotonic() - began, over=True)
    WAYS[way](run)
    # Python drops the exception of Ctrl-C where nothing can raise it; a person presses once more.
    if run.wait(END_SECONDS) is None:
        WAYS[way](run)
        if run.wait(END_SECONDS) is None:
            run.end_all()
            fault = f"it did not end within {2 * END_SECONDS:.0f} s after {way}"
            return Ended(after, over=False, fault=fault)
    return Ended(after, over=False)


def _to_its_end(kind: Kind, clone: Clone) -> Run:
    run = _start(kind, clone)
    if run.wait(RUN_SECONDS) is None:
        run.end_all()
    return run


def _start(kind: Kind, clone: Clone) -> Run:
    settings = [f"train.epochs={EPOCHS[kind.start]}", "scale.checkpoint_seconds=0.1"]
    arguments = ["train", "vit", "--json", "--promote"]
    arguments += [word for setting in settings for word in ("--set", setting)]
    return start(arguments, clone.root, clone.environment)


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
            each = (str(trial.reference.kind), ending.way)
            run[each] += 1
            failed[each] += bool(wrong)
    print(f"\n{'start':<7}{'server':<8}{'ended by':<16}{'runs':>6}{'in failed trials':>18}")
    for kind, way in sorted(run):
        print(f"{kind:<15}{way:<16}{run[kind, way]:>6}{failed[kind, way]:>18}")
    print(f"{len(trials)} trials, {sum(map(bool, results))} failed")


if __name__ == "__main__":
    sys.exit(main())
