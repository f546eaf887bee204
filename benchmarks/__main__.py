"""Runs the benchmarks and writes their figures to `benchmarks/README.md`: `make bench`.

    python -m benchmarks --data cifar10

`--data` is a folder with the `test.parquet` of CIFAR-10 in the layout of the
Hugging Face hub; what needs it is left out without it. Each benchmark runs in a process of its own,
with its own defaults, and can be run alone: its docstring says what is measured and how.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.table import FILE, Row, markdown

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- written by make bench -->", "<!-- end -->"
NAMES = (
    "train_throughput",
    "training_loops",
    "two_workers",
    "predict",
    "flow",
    "gate",
    "prepare",
    "serve",
)
CIFAR = "prepare"  # needs the data


def main() -> None:
    """Runs them one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="+", choices=NAMES, help="no table then")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        file.touch()
        for name in options.only or NAMES:
            arguments: list[str] = []
            if name == CIFAR and options.data is None:
                print(f"\n{name} is left out: it needs --data", flush=True)
                continue
            if name == CIFAR:
                arguments = ["--cifar", str(options.data.absolute() / "test.parquet")]
            print(f"\n{name}", flush=True)
            subprocess.run(
                [sys.executable, "-m", f"benchmarks.{name}", *arguments],
                env=os.environ | {FILE: str(file)},
                check=True,
            )
        rows = [Row(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    if not options.only:
        write(rows)


def write(rows: list[Row]) -> None:
    """Replaces the table in the README."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    when = f"{datetime.now(UTC):%Y-%m-%d}, {_machine()}."
    table = f"{BEGIN}\n{when}\n\n{markdown(rows)}\n{END}"
    README.write_text(before + table + after, encoding="utf-8")


def _machine() -> str:
    import torch
    from joblib import cpu_count

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{cpu_count()} cores ({torch.backends.cpu.get_cpu_capability()}), {device}"


if __name__ == "__main__":
    main()
