"""Ends runs at random moments, and checks that the next run brings everything to its end.

    python -m tests.soak 500 --seed 1

A trial has a clone of the project for itself. A run is ended at a moment drawn over the length of
an undisturbed run, in one of four ways; in one of four trials another run is ended after it, and in
one of four a file of the store is damaged then. Then a run goes to its end. Half of the trials
start from nothing, the others with a champion, which the run challenges. In half of each, runs
start a Prefect server of their own; in the others they use one that is up, as after `make up`. The
exit code is 1 if a trial failed; the folders of those are kept.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.flows.conftest import Clone, copy_clone, free_port, make_clone, until
from tests.soak.outcome import damage_a_file, faults, outcome_of

MARK = "RETRAIN_SOAK"  # in the environment of all processes of a clone; its value is the folder
EPOCHS = {"first": 4, "second": 8}
WAYS = ("SIGKILL to all", "SIGKILL", "SIGTERM", "Ctrl-C")
END_SECONDS = 60.0  # for a run to end after SIGTERM or Ctrl-C
GONE_SECONDS = 20.0  # for a server to notice that its run has ended
RUN_SECONDS = 600.0


@dataclass(frozen=True)
class Kind:
    """A kind of trial.

    Attributes:
        start: `first`: from nothing; `second`: with a champion.
        begin: The clone that trials copy.
        database: The file of the Prefect server that is up, if runs use it.
        outcome: What an undisturbed run leads to.
        seconds: How long that takes.
    """

    start: str
    begin: Clone
    database: Path | None
    outcome: dict[str, object]
    seconds: float

    def __str__(self) -> str:
        return f"{self.start:<7}{'up' if self.database else 'own':<4}"


def start(root: Path, environment: dict[str, str], epochs: int) -> subprocess.Popen[bytes]:
    """Starts a run in a clone, in a session of its own; what it prints goes to files."""
    command = [sys.executable, "-m", "retrain.cli", "train", "vit", "--json", "--promote"]
    command += ["--set", f"train.epochs={epochs}", "--set", "scale.checkpoint_seconds=0.1"]
    with (root / "soak.json").open("wb") as output, (root / "soak.log").open("ab") as errors:
        return subprocess.Popen(
            command, cwd=root, env=environment | {MARK: str(root)}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
        )  # fmt: skip


def processes(root: Path) -> list[psutil.Process]:
    """The processes of the runs in a folder, and in the folders below it."""
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (mark := (process.info["environ"] or {}).get(MARK))
        and Path(mark).is_relative_to(root)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def end_all(root: Path) -> None:
    """Kills all processes of the runs in a folder."""
    while alive := processes(root):
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1)


def left_over(root: Path, seconds: float = GONE_SECONDS) -> list[str]:
    """The processes that are still there after some time."""
    deadline = time.monotonic() + seconds
    while (alive := processes(root)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [str(process) for process in alive]


def send(run: subprocess.Popen[bytes], way: str, root: Path) -> None:
    """Ends a run in one of the ways."""
    if way == "SIGKILL to all":
        end_all(root)
    elif way == "Ctrl-C":
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    else:
        run.send_signal(getattr(signal, way))


def end_run(kind: Kind, clone: Clone, way: str, after: float) -> tuple[str, str]:
    """Starts a run and ends it after some seconds.

    Returns:
        How it ended, and what went wrong; empty if nothing.
    """
    run = start(clone.root, clone.environment, EPOCHS[kind.start])
    with suppress(subprocess.TimeoutExpired):
        run.wait(after)
        return f"{way} after it was over", ""
    # Python drops the exception of Ctrl-C where nothing can raise it; a person presses once more.
    for _ in range(2):
        send(run, way, clone.root)
        with suppress(subprocess.TimeoutExpired):
            run.wait(END_SECONDS)
            return f"{way} at {after:.1f} s", ""
    end_all(clone.root)
    run.wait()
    return f"{way} at {after:.1f} s", f"it did not end within {2 * END_SECONDS:.0f} s after {way}"


def finish(epochs: int, clone: Clone) -> tuple[dict[str, object], list[str]]:
    """Lets a run go to its end.

    Returns:
        What it led to, and what is wrong if it failed.
    """
    run = start(clone.root, clone.environment, epochs)
    try:
        code = run.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        end_all(clone.root)
        code = run.wait()
    if code:
        return {}, [f"the last run ended with {code}: {(clone.root / 'soak.log').read_text()}"]
    document = json.loads((clone.root / "soak.json").read_text())
    return outcome_of(clone.root, document), []


def measure(root: Path, empty: Clone, server: tuple[str, Path]) -> Iterator[Kind]:
    """Makes the states that trials start from, and an undisturbed run from each."""
    for api, database in (("", None), server):
        begin = empty
        for name, epochs in EPOCHS.items():
            folder = root / f"{name}-{'up' if api else 'own'}"
            clone, began = replace(copy_clone(begin, folder), api=api), time.monotonic()
            outcome, wrong = finish(epochs, clone)
            assert not wrong, wrong
            kind = Kind(name, begin, database, outcome, time.monotonic() - began)
            print(f"{kind}: {kind.seconds:.1f} s undisturbed; {outcome}", flush=True)
            yield kind
            begin = clone  # with a champion


def run_trial(number: int, kind: Kind, api: str, root: Path, rng: random.Random) -> bool:
    """Runs a trial and prints its line; returns whether all is as it should be."""
    clone = replace(copy_clone(kind.begin, root), api=api if kind.database else "")
    ended, wrong = [], []
    for _ in range(1 if rng.random() < 0.75 else 2):
        after = rng.uniform(0, kind.seconds)
        how, fault = end_run(kind, clone, rng.choice(WAYS), after)
        ended.append(how)
        wrong += [fault] if fault else []
    damaged = rng.random() < 0.25
    if damaged:
        damage_a_file(root, rng.random())
        ended.append("a file damaged")
    outcome, failed = finish(EPOCHS[kind.start], clone)
    wrong += failed
    if not failed:
        own = root / ".retrain" / "prefect" / "prefect.db"
        wrong += faults(root, kind.database or own, damaged)
        wrong += [
            f"{name} is {outcome[name]}, not {value}"
            for name, value in kind.outcome.items()
            if outcome[name] != value and not (damaged and name == "trainings")
        ]
    if left := left_over(root):
        wrong.append(f"left over: {left}")
        end_all(root)
    verdict = "; ".join(wrong) or "ok"
    print(f"{number:4} {kind} {', '.join(ended):<44} {verdict}", flush=True)
    if not wrong:
        shutil.rmtree(root)
    return not wrong


def listens(port: int) -> bool:
    """Whether a server is up on this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def prefect_server(clone: Clone, home: Path) -> Iterator[tuple[str, Path]]:
    """Starts a Prefect server with the command of `make up`; its address, and its database."""
    home.mkdir(exist_ok=True)
    port, database = free_port(), home / "prefect.db"
    api = f"http://127.0.0.1:{port}/api"
    own = {"PREFECT_HOME": str(home), "PREFECT_API_URL": api, MARK: str(home)}
    command = ["-m", "retrain.servers.program", "ephemeral", "prefect", "server", "start"]
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(  # which ends with this process in any case
            [sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=clone.root, env=clone.environment | own, stdin=subprocess.PIPE,
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: listens(port), 180)
        yield api, database
    finally:
        end_all(home)
        server.wait()


def main() -> int:
    """Runs the trials; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("trials", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    root, failed = Path(tempfile.mkdtemp(prefix="retrain-soak-")), 0
    empty = make_clone(root / "empty", "")
    try:
        with prefect_server(empty, root / "server") as server:
            kinds = list(measure(root, empty, server))
            for number in range(options.trials):
                rng, place = random.Random(f"{options.seed} {number}"), root / f"trial-{number}"
                failed += not run_trial(number, kinds[number % 4], server[0], place, rng)
    finally:
        end_all(root)
    print(f"{options.trials} trials, {failed} failed")
    if failed:
        print(f"The folders of the failed trials are in {root}.")
    else:
        shutil.rmtree(root)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
