"""What it costs that a run checks, by digest, what it takes from the store.

    python -m benchmarks.digests --rounds 3

First, an artifact of 2 GB of random bytes in 16 files: the check of a step's input, against reading
the same files in the same pieces and doing nothing with them, in turns; from the page cache, so
that the disk does not hide the hashing. Then the flow, in two copies of the project, one of them
without the check: cold, where a run has made all itself and nothing is to be checked, and
warm with another learning rate, where the training's input is from the store and is read before the
training begins. They take turns at being first. Wall time of whole commands in seconds, medians.

Result of 2026-11-21, two cores, 3 rounds: 1.11 s for the 2 GB, so 1.8 GB in a second. The
artifacts of the starter data take 1 to 4 ms each: less than a thousandth of a flow. The flows
themselves took 22 to 28 s, with and without the check, and differed in a round by -3.5 to 2 s: 3
% cannot be seen in their wall times here. Cold, nothing is read, as a test holds.
"""

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from benchmarks.flow import TRAIN, call, copy_project
from benchmarks.table import Row, report
from retrain.atomic import write_json
from retrain.outputs import MANIFEST, Plan, digest_of_output, list_files
from retrain.store import Artifact, Store
from retrain.verify import THREADS, Verifier

FILES, FILE_BYTES = 16, 125_000_000
CHECK = "return artifact.folder.is_relative_to(self.store.root)"


def main() -> None:
    """Runs the rounds and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        artifact = _make_artifact(store)
        _read(artifact)
        for _ in range(rounds):
            seconds["read"].append(_timed(lambda: _read(artifact)))
            seconds["check"].append(_timed(lambda: _check(store, artifact)))
    for number in range(rounds):
        _run_flows(number, seconds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        print(f"{name:<24} {medians[name]:6.2f} s  of {[round(value, 2) for value in values]}")
    report(Row("digests", "2 GB checked", medians["check"], "read", medians["read"], "s"))
    for name in ("cold flow", "warm, another train.lr"):
        theirs = medians[f"{name}, unchecked"]
        report(Row("digests", name, medians[name], "without the check", theirs, "s", "≤ 1.03"))


def _make_artifact(store: Store) -> Artifact:
    plan = Plan("big", {}, {}, {}, {})
    folder = store.folder("big", plan.key)
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"{number}.npy").write_bytes(os.urandom(FILE_BYTES))
    files = list_files(folder)
    manifest = {
        "digest": digest_of_output({}, files), "facts": {}, "files": files, "plan": asdict(plan),
        "provenance": {"run": "before"},
    }  # fmt: skip
    write_json(folder / MANIFEST, manifest)
    found = store.find("big", plan.key)
    assert found is not None
    return found


def _check(store: Store, artifact: Artifact) -> None:
    Verifier(store).check([artifact])


def _read(artifact: Artifact) -> None:
    def read(path: Path) -> None:
        buffer = bytearray(1 << 20)
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, sorted(artifact.folder.glob("*.npy"))))


def _timed(function: Callable[[], None]) -> float:
    began = monotonic()
    function()
    return monotonic() - began


def _run_flows(number: int, seconds: dict[str, list[float]]) -> None:
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        clones = {"": copy_project(Path(ours)), ", unchecked": copy_project(Path(theirs))}
        module = clones[", unchecked"] / "retrain" / "verify.py"
        source = module.read_text(encoding="utf-8")
        assert CHECK in source
        module.write_text(source.replace(CHECK, "return False"), encoding="utf-8")
        names = sorted(clones, reverse=number % 2 == 1)  # neither is always first
        for name in names:
            seconds[f"cold flow{name}"].append(call(clones[name], TRAIN)[0])
        for name in names:
            arguments = (*TRAIN, "--set", "train.lr=0.0021")
            seconds[f"warm, another train.lr{name}"].append(call(clones[name], arguments)[0])
        last = {name: round(values[-1], 1) for name, values in seconds.items()}
        print(f"round {number + 1}: {last}", flush=True)


if __name__ == "__main__":
    main()
