"""How long `make train` takes, installed: the first run from an empty store, and the second.

    python -m benchmarks.flow --runs 3

Each round copies the project's files to a new folder, so that the store, the MLflow database and
Prefect's home are empty, and runs `retrain train vit` there twice, each time with the Prefect
server that a run without one brings along. Wall time of the whole command, in seconds.

Result of 2026-11-21, two cores: first 38.1 s, second 8.6 s (medians of 2 rounds).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Runs the rounds and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    rounds = parser.parse_args().runs
    firsts, seconds = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            root = copy_project(Path(folder))
            first, document = train(root)
            second, again = train(root)
        firsts.append(first)
        seconds.append(second)
        cached = sum(step["cached"] for step in again["steps"])
        print(f"first {first:.1f} s, accuracy {document['metrics']['accuracy']:.4f};", end=" ")
        print(f"second {second:.1f} s, {cached} steps cached", flush=True)
    print(f"median first {statistics.median(firsts):.1f} s", end=", ")
    print(f"median second {statistics.median(seconds):.1f} s over {rounds} rounds")


def copy_project(root: Path) -> Path:
    """Copies what is in git, or would be, to an empty folder, as a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def train(root: Path) -> tuple[float, dict[str, Any]]:
    """Runs the flow in a copy of the project.

    Returns:
        Its wall time in seconds, and its document.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "retrain.cli", "train", "vit", "--json"],
        cwd=root, env=kept | {"PYTHONPATH": str(root), "PREFECT_API_URL": ""},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return time.monotonic() - began, json.loads(done.stdout)


if __name__ == "__main__":
    main()
