"""Tries mutated images, data sets and configurations; nothing may crash, hang or be let through.

    python -m tests.fuzz --images 2000 --datasets 200 --configs 200 --seed 0

In a clone of its own: images, some hundred at a time, through the command `retrain validate`;
Parquet files, archives and `params.yaml` through the same functions in a process of their own, and
each configuration that is refused through the command too.

A failure is: a traceback on the screen, or an error that is none of ours; more than `--seconds`, or
2 GB of memory in one process; an accepted image that Pillow cannot load; a good file that is
refused, or one that cannot be good accepted. The files of failures are kept. Exit code 1 if there
are any.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.flow import copy_project
from tests.fuzz import configs, datasets, images
from tests.fuzz.case import Case, Outcome, make_cases
from tests.fuzz.limits import Limited

CLASSES = ("cat", "dog")
WITH_OTHERS = "in a run that failed"
PER_RUN = 250  # images
PER_WORKER = 25  # data sets or configurations
SETTINGS = {
    "checks.max_bad_fraction": 0.99,
    "checks.min_images_per_class": 1,
    "checks.min_side": 1,
}


def main() -> int:
    """Runs all and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--datasets", type=int, default=200, help="Parquet files and archives")
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for a command or a data set")
    parser.add_argument("--keep", type=Path, default=Path(".retrain/fuzz"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        clone = Clone(copy_project(Path(place)), options.seconds)
        clone.prepare()
        outcomes = []
        for outcome in _all(clone, options):
            outcomes.append(outcome)
            if outcome.failure:
                _keep(outcome, options.keep.absolute(), options.seed)
    return _report(outcomes)


class Clone:
    """A copy of the project to run things in."""

    def __init__(self, root: Path, seconds: float) -> None:
        self.root = root
        self.seconds = seconds
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        self.environment = kept | {
            "PYTHONPATH": str(root),
            "PREFECT_API_URL": "",
            "PATH": f"{Path(sys.prefix, 'bin')}{os.pathsep}{os.environ['PATH']}",
        }

    def prepare(self) -> None:
        """Makes the databases, which takes longer than any run after that."""
        code, _, errors, broken = self.call(["-m", "retrain.cli", "validate", "vit"], 600)
        assert code == 0, errors + broken

    def call(self, command: Sequence[str], seconds: float = 0) -> tuple[int, str, str, str]:
        """Runs Python; returns the exit code, both outputs, and which limit was broken."""
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as output,
            tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        ):
            limited = Limited(
                command, self.root, self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            )  # fmt: skip
            limited.deadline = time.monotonic() + (seconds or self.seconds)
            try:
                code = limited.process.wait()
            finally:
                limited.end()
            output.seek(0), errors.seek(0)
            return code, output.read(), errors.read(), limited.broken

    def unshowable(self, files: Sequence[Path]) -> dict[str, str]:
        """The files that Pillow or the decoding for training cannot load, with the reasons."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.fuzz.look"],
            input="\n".join(map(str, files)), cwd=self.root, env=self.environment,
            stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        found: dict[str, str] = json.loads(done.stdout)
        return found


def _all(clone: Clone, options: argparse.Namespace) -> Iterator[Outcome]:
    seed = options.seed
    cases = make_cases("images", images.MAKERS, options.images, seed)
    for start in range(0, len(cases), PER_RUN):
        yield from _try_images(clone, cases[start : start + PER_RUN])
    cases = make_cases("data", datasets.MAKERS, options.datasets, seed)
    cases += make_cases("big", datasets.RARE, min(1, options.datasets), seed)
    yield from _try_in_workers(clone, cases)
    for outcome in _try_in_workers(
        clone, make_cases("config", configs.MAKERS, options.configs, seed)
    ):
        refused = outcome.verdict == "refused" and not outcome.failure
        yield _try_command(clone, outcome) if refused else outcome


def _try_images(clone: Clone, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Validates images as one data set, by the command."""
    import pyarrow.parquet as pq

    folder = clone.root / "fuzz"
    shutil.rmtree(folder, ignore_errors=True)
    _write_good_images(folder)
    names = {}
    for number, case in enumerate(cases):
        name = f"train/{CLASSES[number % 2]}/{case.name}"
        (folder / name).write_bytes(case.data)
        names[name] = case
    settings = {"data.path": str(folder)} | SETTINGS
    chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    code, output, errors, broken = clone.call(
        ["-m", "retrain.cli", "validate", "vit", "--json", *chosen]
    )
    failure = broken or ("a traceback" if "Traceback" in errors else "")
    if code != 0 or failure:
        failure = f"{failure or 'all are refused'}: {errors.strip()[-500:]}"
        yield Outcome(cases[0], "refused", f"{failure} (with the {len(cases) - 1} after it)")
        yield from (Outcome(case, "refused", WITH_OTHERS) for case in cases[1:])
        return
    validated = Path(json.loads(output)["steps"][1]["path"])
    accepted = set(pq.read_table(validated / "images.parquet")["file"].to_pylist())
    bad = clone.unshowable([folder / name for name in sorted(accepted)])
    assert len(accepted - names.keys()) == 3 * 5 * len(CLASSES), "the good ones are accepted"
    for name, case in names.items():
        yield _judge(case, name in accepted, bad.get(str(folder / name), ""), "set aside")


def _write_good_images(folder: Path) -> None:
    """Enough of each class in each split that the data as a whole is never refused."""
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for label in CLASSES:
            place = folder / split / label
            place.mkdir(parents=True)
            for number in range(5):
                images.picture(rng).save(place / f"good-{number}.png")


def _judge(case: Case, accepted: bool, unshowable: str, otherwise: str, why: str = "") -> Outcome:
    """What became of a case, and whether that is right."""
    failure = ""
    if accepted and unshowable:
        failure = f"accepted, but {unshowable}"
    elif accepted and case.good is False:
        failure = "accepted, but cannot be good"
    elif not accepted and case.good:
        failure = f"{otherwise}, but is good: {why}"
    return Outcome(case, "accepted" if accepted else otherwise, failure)


def _try_in_workers(clone: Clone, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Tries each case alone, some in one process; one that breaks a limit gets a new one."""
    folder = clone.root / "fuzz"
    worker = None
    for number, case in enumerate(cases):
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "accepted").mkdir(parents=True)
        (folder / case.name).write_bytes(case.data)
        if worker is None or number % PER_WORKER == 0 or worker.process.poll() is not None:
            if worker:
                worker.end()
            worker = Limited(
                ["-m", "tests.fuzz.worker"], clone.root, clone.environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        worker.deadline = time.monotonic() + clone.seconds
        request = {"file": str(folder / case.name), "into": str(folder / "accepted")}
        worker.process.stdin.write(json.dumps(request) + "\n")
        worker.process.stdin.flush()
        answer = worker.process.stdout.readline()
        worker.deadline = float("inf")
        yield _read_answer(clone, case, answer, worker.broken, folder / "accepted")
        shutil.rmtree(clone.root / ".retrain" / "store", ignore_errors=True)
    if worker:
        worker.end()


def _read_answer(clone: Clone, case: Case, line: str, broken: str, accepted: Path) -> Outcome:
    if not line:
        return Outcome(case, "refused", broken or "the process has died")
    answer = json.loads(line)
    if answer["verdict"] == "crashed":
        return Outcome(case, "refused", f"no error of ours: {answer['message'][-1500:]}")
    if answer["verdict"] == "refused":
        return _judge(case, False, "", "refused", answer["message"])
    bad = clone.unshowable(sorted(accepted.iterdir())).values()
    outcome = _judge(case, True, next(iter(bad), ""), "refused")
    return Outcome(case, outcome.verdict, outcome.failure, answer["set_aside"])


def _try_command(clone: Clone, outcome: Outcome) -> Outcome:
    """A configuration that was refused, through the command."""
    params = clone.root / "params.yaml"
    before = params.read_bytes()
    params.write_bytes(outcome.case.data)
    code, _, errors, broken = clone.call(["-m", "retrain.cli", "train", "vit"])
    params.write_bytes(before)
    failure = broken
    if "Traceback" in errors or code != 2:
        failure = f"the command ends with {code}: {errors.strip()[-1500:]}"
    return Outcome(outcome.case, "refused", failure)


def _keep(outcome: Outcome, folder: Path, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / outcome.case.name
    kept.write_bytes(outcome.case.data)
    if outcome.failure != WITH_OTHERS:
        why = " ".join(outcome.failure.split())
        print(f"FAILED {outcome.case.kind}, seed {seed}, {kept}: {why[:1000]}", flush=True)


def _report(outcomes: Sequence[Outcome]) -> int:
    """Prints a line for each kind; returns the exit code."""
    columns = ("tried", "accepted", "set aside", "refused", "failures")
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        row = counts.setdefault(outcome.case.kind, Counter())
        row.update(["tried", outcome.verdict])
        row["set aside"] += outcome.set_aside
        row["failures"] += bool(outcome.failure)
    print(f"{'kind':<34}" + "".join(f"{name:>11}" for name in columns))
    for kind, row in counts.items():
        print(f"{kind:<34}" + "".join(f"{row[name]:>11,}" for name in columns))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
