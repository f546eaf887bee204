"""Plays a year of a project: data that grow each week, and what goes wrong in a year.

    python -m tests.year 52

A copy of the project with an upstream, DVC's remote, a registry and a Prefect server of its own is
trained each week as a schedule does, while everything in it is made a week older. In week 20 of 52
the camera changes, in week 30 some labels are wrong, in week 35 a delivery is broken, in week 40
the champion is rolled back, and in week 45 a newer version of the project is merged
(`tests/year/plan.py`). A line says what each week led to. At the end it is checked that all is as
it was played (`tests/year/checks.py`); the exit code is 1 if it is not. The folder is kept, with
the history in `trainer/reports/digits/index.html`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from retrain.project import Project
from retrain.servers.newest import take_newest
from tests import templates
from tests.flows.conftest import Clone
from tests.soak.__main__ import prefect_server
from tests.year.checks import faults
from tests.year.plan import SMALL, Plan
from tests.year.team import Team


def play(folder: Path, plan: Plan) -> list[str]:
    """Plays a year.

    Args:
        folder: An empty one; everything stays there.
        plan: What happens when.

    Returns:
        What is not as it should be.
    """
    team, trainer = Team(folder, plan), Clone(folder / "trainer", "")
    team.found()
    templates.place_mlflow_database(trainer.root)
    templates.place_prefect_database(folder, "server/prefect.db")
    with prefect_server(trainer, folder / "server") as (api, _):
        for first, end in ((0, plan.upgrade + 1), (plan.upgrade + 1, plan.weeks)):
            # A process of its own, because after the upgrade the code is another.
            words = [json.dumps(asdict(plan)), str(first), str(end), api]
            subprocess.run(
                [sys.executable, "-m", "tests.year.weeks", str(folder), *words],
                cwd=trainer.root, env=trainer.environment, check=True,
            )  # fmt: skip
            if end < plan.weeks:
                team.upgrade(plan.upgrade)
                taken = take_newest(Project(trainer.root))
                assert taken and "taken:" in taken, taken
        return faults(team, replace(trainer, api=api))


def main() -> int:
    """Plays a year; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.year")
    parser.add_argument("weeks", type=int)
    weeks = parser.parse_args().weeks
    plan = SMALL if weeks == SMALL.weeks else Plan.of(weeks)
    folder = Path(tempfile.mkdtemp(prefix="retrain-year-"))
    wrong = play(folder, plan)
    print(*wrong, sep="\n")
    print(f"The history is {folder / 'trainer' / 'reports' / 'digits' / 'index.html'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
