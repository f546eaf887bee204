"""How long the whole flow takes: cold, against a script that does the same; and unchanged.

    python -m benchmarks.flow --rounds 3

Each round clones what is committed to three new folders, so that the store, the MLflow database,
DVC's cache and Prefect's home are empty. In the first, `retrain train vit` runs, with the Prefect
server that it brings along where none is up; in the second `benchmarks/plain.py`, which reads,
checks, decodes, trains, scores and registers the same without any orchestration; in the third that
script as a Prefect flow with a task for each of its functions. They take turns at being first.
Then, in the first folder, with nothing changed: `retrain train vit`, `retrain train vit --run`
(every step from the cache, through Prefect), and `dvc repro` (which has run once before). Wall time
of whole commands in seconds, medians over the rounds; a step's time is the one that the run prints.

Result of 2026-11-27, two cores, 3 rounds, when the program that checks packages was started before
it was asked, which is no longer so: cold flow 20.2 s, the script 15.9 s (ratio 1.27), the
script in Prefect 27.7 s (0.73). train takes 5.4 s, promote 2.0 s. Unchanged 1.47 s to 5.49 s for
`dvc repro`, ratio 0.27, of which the import of Prefect is the most; with `--run` 5.8 s.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.table import Row, report

ROOT = Path(__file__).parents[1]
TRAIN = ("-m", "retrain.cli", "train", "vit", "--json")
PLAIN = ("-m", "benchmarks.plain", "vit")
AS_FLOW = (*PLAIN, "--prefect")
DVC = ("-m", "dvc", "repro", "--quiet", "promote@vit")
# Else Prefect's own server of a run is given up after 20 s, which its first start may take.
PATIENT = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}


def main() -> None:
    """Runs the rounds and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            clone, script, as_flow = (clone_project(Path(folder, name)) for name in "abc")
            cold = {
                "cold flow": (clone, TRAIN),
                "plain script": (script, PLAIN),
                "plain script in Prefect": (as_flow, AS_FLOW),
            }
            names = [*cold]
            for name in names[number % 3 :] + names[: number % 3]:  # none is always first
                took, said = call(*cold[name])
                seconds[name].append(took)
                if name == "cold flow":
                    _note_steps(json.loads(said), seconds)
            call(clone, DVC)
            for _ in range(3):
                seconds["unchanged"].append(call(clone, TRAIN)[0])
                seconds["dvc repro, unchanged"].append(call(clone, DVC)[0])
            seconds["unchanged, --run"].append(call(clone, (*TRAIN, "--run"))[0])
        last = {name: round(values[-1], 1) for name, values in seconds.items()}
        print(f"round {number + 1}: {last}", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<24} {median:6.2f} s")
    for ours, theirs, target in (
        ("cold flow", "plain script", "≤ 1.5"),
        ("cold flow", "plain script in Prefect", "≤ 0.85"),
        ("unchanged", "dvc repro, unchanged", "≤ 1.3"),
        ("unchanged, --run", "dvc repro, unchanged", "-"),
    ):
        report(Row("flow", ours, medians[ours], theirs, medians[theirs], "s", target))


def _note_steps(document: dict[str, Any], seconds: dict[str, list[float]]) -> None:
    assert document["metrics"]["accuracy"] >= 0.95, document["metrics"]
    for step in document["steps"]:
        seconds[f"  {step['step']}"].append(step["seconds"])


def clone_project(root: Path) -> Path:
    """Clones the project to a folder."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    return root


def call(root: Path, arguments: tuple[str, ...]) -> tuple[float, str]:
    """Runs Python in a clone of the project.

    Returns:
        Its wall time in seconds, and what it printed.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    home = root / ".retrain" / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root, capture_output=True, text=True,
        env=kept | {"PYTHONPATH": str(root), "PREFECT_HOME": str(home), "PATH": path} | PATIENT,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
    return time.monotonic() - began, done.stdout


if __name__ == "__main__":
    main()
