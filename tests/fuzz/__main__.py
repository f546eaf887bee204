"""Tries mutated images, data sets and configurations; nothing may crash, hang or be let through.

    python -m tests.fuzz --images 2000 --datasets 200 --configs 200 --seed 0

They go through the project's own functions, in a process in a clone: images, some hundred at a
time, as a data set, and all else one by one.

A failure is: a traceback, or an error that is none of ours; more than a minute, or 2 GB of
memory; an accepted image that Pillow cannot load; a good file that is refused, or one that cannot
be good accepted. The files of failures are kept. Exit code 1 if there are any.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from benchmarks.flow import copy_project
from tests.fuzz import configs, datasets, images
from tests.fuzz.case import Case, make_cases

PER_RUN = 250  # images
MEMORY = 2 * 2**30
SECONDS = 60.0
KEPT = Path(".retrain/fuzz")  # of failures
WORKER = ("-m", "tests.fuzz.worker")

Verdict = tuple[Case, str, str]  # with the verdict, and what is wrong with it


class Worker:
    """A process in the clone, which is ended with its children when it breaks a limit."""

    def __init__(self, clone: Path, command: Sequence[str] = WORKER) -> None:
        self.clone, self.command = clone, command
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = kept | {"PYTHONPATH": str(clone), "PREFECT_API_URL": "", "PATH": path}
        self.process: subprocess.Popen[str] | None = None

    def ask(self, file: Path) -> dict:
        """What becomes of a file, as `tests.fuzz.worker` answers."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, *self.command], cwd=self.clone, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        print(file, file=self.process.stdin, flush=True)
        broken = self._broken_limit()
        answer = "" if broken else self.process.stdout.readline()
        if answer:
            return json.loads(answer)
        self.end()
        return {"verdict": "crashed", "message": broken or "the process has died", "accepted": {}}

    def end(self) -> None:
        """Ends the process; the next question starts another one."""
        if self.process:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            self.process = None

    def _broken_limit(self) -> str:
        """Waits for an answer; which limit was broken before it came."""
        deadline, top = time.monotonic() + SECONDS, psutil.Process(self.process.pid)
        while not select.select([self.process.stdout], [], [], 0.05)[0]:
            if time.monotonic() > deadline:
                return "hangs"
            with suppress(psutil.NoSuchProcess):
                used = max(each.memory_info().rss for each in (top, *top.children(recursive=True)))
                if used > MEMORY:
                    return f"takes {used:,} bytes"
        return ""


def try_images(worker: Worker, cases: Sequence[Case]) -> Iterator[Verdict]:
    """Takes images as one data set, with enough good ones that it is not refused as a whole."""
    folder, rng, files = worker.clone / "fuzz", np.random.default_rng(0), {}
    shutil.rmtree(folder, ignore_errors=True)
    for number, label in enumerate(("cat", "dog")):
        for split in ("train", "val", "test"):
            place = folder / split / label
            place.mkdir(parents=True)
            for good in range(5):
                images.picture(rng).save(place / f"good-{good}.png")
        files |= {f"train/{label}/{case.name}": case for case in cases[number::2]}
    for name, case in files.items():
        (folder / name).write_bytes(case.data)
    answer = worker.ask(folder)
    accepted = answer["accepted"]
    if len(accepted.keys() - files.keys()) != 30:
        yield cases[0], "refused", f"all of {len(cases)} are refused: {answer['message']}"
        return
    for name, case in files.items():
        fault = case.fault(name in accepted, accepted.get(name, ""), "set aside")
        yield case, "accepted" if name in accepted else "set aside", fault


def try_alone(worker: Worker, cases: Sequence[Case]) -> Iterator[Verdict]:
    """Takes each data set or configuration by itself."""
    folder = worker.clone / "fuzz"
    for case in cases:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / case.name).write_bytes(case.data)
        answer = worker.ask(folder / case.name)
        verdict, message = answer["verdict"], answer["message"]
        unreadable = next(filter(None, answer["accepted"].values()), "")
        fault = case.fault(verdict == "accepted", unreadable, message)
        if verdict == "crashed":
            fault = message
        yield case, verdict, fault
        shutil.rmtree(worker.clone / ".retrain" / "store", ignore_errors=True)


def _all(worker: Worker, options: argparse.Namespace) -> Iterator[Verdict]:
    cases = make_cases("images", images.MAKERS, options.images, options.seed)
    for start in range(0, len(cases), PER_RUN):
        yield from try_images(worker, cases[start : start + PER_RUN])
    alone = make_cases("data", datasets.MAKERS, options.datasets, options.seed)
    alone += make_cases("big", datasets.BIG, min(1, options.datasets), options.seed)
    alone += make_cases("config", configs.MAKERS, options.configs, options.seed)
    yield from try_alone(worker, alone)


def main() -> int:
    """Tries all, and prints a line for each failure and for each kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--datasets", type=int, default=200, help="Parquet files and archives")
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as place:
        worker = Worker(copy_project(Path(place)))
        for case, verdict, fault in _all(worker, options):
            counts.setdefault(case.kind, Counter()).update(["tried", verdict])
            if fault:
                counts[case.kind]["failures"] += 1
                KEPT.mkdir(parents=True, exist_ok=True)
                (KEPT / case.name).write_bytes(case.data)
                print(f"FAILED {case.kind}, {KEPT / case.name}: {fault}", flush=True)
        worker.end()
    columns = ("tried", "accepted", "set aside", "refused", "failures")
    print(f"{'kind':<34}" + "".join(f"{name:>11}" for name in columns))
    for kind, row in counts.items():
        print(f"{kind:<34}" + "".join(f"{row[name]:>11,}" for name in columns))
    return 1 if any(row["failures"] for row in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
