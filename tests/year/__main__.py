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
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests import templates
from tests.flows.conftest import Clone
from tests.soak.__main__ import prefect_server
from tests.year.checks import FAULTS
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
        # A process of its own, because after the upgrade the code is another.
        _run(trainer, "weeks", folder, plan, "0", str(plan.upgrade + 1), api)
        team.upgrade(plan.upgrade)
        trainer.run("git", "pull", "--quiet", "--ff-only")
        _run(trainer, "weeks", folder, plan, str(plan.upgrade + 1), str(plan.weeks), api)
        _run(trainer, "checks", folder, plan, api)
    wrong: list[str] = json.loads((folder / FAULTS).read_text(encoding="utf-8"))
    return wrong


def _run(trainer: Clone, module: str, folder: Path, plan: Plan, *words: str) -> None:
    """Runs a module of this package with the code of the clone that trains."""
    command = [sys.executable, "-m", f"tests.year.{module}", str(folder), json.dumps(asdict(plan))]
    subprocess.run([*command, *words], cwd=trainer.root, env=trainer.environment, check=True)


def main() -> int:
    """Plays a year; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.year")
    parser.add_argument("weeks", type=int)
    weeks = parser.parse_args().weeks
    try:
        plan = SMALL if weeks == SMALL.weeks else Plan.of(weeks)
    except ValueError as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="retrain-year-"))
    wrong = play(folder, plan)
    shutil.rmtree(templates.FOLDER, ignore_errors=True)
    for fault in wrong:
        print(fault)
    print(f"The history is {folder / 'trainer' / 'reports' / 'digits' / 'index.html'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
