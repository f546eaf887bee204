"""What a plan of Ray Data costs more than tasks of Ray's own, spread by hand.

    python -m benchmarks.plan --cifar cifar10/test.parquet --rounds 5

On a Ray that runs and has its workers, each round does the same in both ways, in turns: the plan of
`tasks.compute.ray_data`, and `ray.remote` on every unit and `ray.get` of all.

- empty: units that do nothing, so few that each is a block, and as many as large data has.
- real: the units of the JPEGs of a Parquet file of CIFAR-10, read and decoded as `validate` does,
  once and `--times` over.

The figures are seconds, medians of the rounds; the first round is left out as warm-up.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.table import Row, report
from retrain.servers import ray_cluster
from retrain.store import Artifact
from retrain.workload import Data
from tasks.compute import ray_data
from tasks.data.raw_dataset import open_raw_dataset
from tasks.validate.label_names import LabelNames
from tasks.validate.scan import ScanTask, _inspect

EMPTY = (10, 256)
BLOCK = 0.05  # seconds that an empty unit is said to take


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", type=Path, default=Path("cifar10/test.parquet"))
    parser.add_argument("--times", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not options.cifar.is_file():
        sys.exit(f"{options.cifar} is not there: give a Parquet file of CIFAR-10 with --cifar.")
    ray_cluster.connect()
    for count in EMPTY:
        compare(f"{count} empty units", _nothing, [0] * count, count * BLOCK, options.rounds)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name, "data")
        data.mkdir()
        (data / "images.parquet").symlink_to(options.cifar.resolve())
        pulled = Artifact("pull", "", "", Path(name), {"format": "parquet"})
        source = open_raw_dataset(Data(path="data"), pulled)
        units = source.units()
        for times in (1, options.times):
            tasks = [
                ScanTask(number, unit, Path(name) / f"{number}.parquet")
                for number, unit in enumerate(units * times)
            ]
            seconds = sum(task.unit.seconds for task in tasks)
            images = sum(task.unit.rows for task in tasks)
            what = f"{images:,} images in {len(tasks)} units"
            inspect = partial(_inspect, source, LabelNames(data, None), False, None)
            compare(what, inspect, tasks, seconds, options.rounds)
    ray_cluster.disconnect()


def _nothing(_: int) -> None:
    pass


def compare(
    what: str, work: Callable[[Any], None], units: Sequence[Any], seconds: float, rounds: int
) -> None:
    """Does the same in both ways, in turns, and prints the medians."""
    ways = {"plan": _by_plan, "tasks": _by_tasks}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way in sorted(ways, reverse=number % 2 == 0):  # neither is always first
            began = monotonic()
            ways[way](work, units, seconds)
            found[way].append(monotonic() - began)
    plan, tasks = (statistics.median(found[way][1:]) for way in ("plan", "tasks"))
    report(Row("plan", what, plan, "tasks of Ray", tasks, "s"))


def _by_plan(work: Callable[[Any], None], units: Sequence[Any], seconds: float) -> None:
    list(ray_data._results(ray_data._plan(work, units, seconds)))


def _by_tasks(work: Callable[[Any], None], units: Sequence[Any], _: float) -> None:
    import ray  # not before `retrain`, which sets its environment

    task = ray.remote(work.func if isinstance(work, partial) else work)
    arguments = work.args if isinstance(work, partial) else ()
    ray.get([task.remote(*arguments, unit) for unit in units])


if __name__ == "__main__":
    main()
