"""What must be true after a year, whatever it was: as it was played, whole, and bounded.

    python -m tests.year.checks FOLDER PLAN API

What is not is written to `faults.json`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from retrain.atomic import write_json
from retrain.digests import sha256_of
from retrain.project import Project
from retrain.registry import lineage, snapshot, versions
from retrain.store import Store
from tests.flows.conftest import Clone
from tests.year import size
from tests.year.plan import SMALL, Plan
from tests.year.team import WORKLOAD, Team
from tests.year.weeks import read

FAULTS = "faults.json"
FALSE_ALARMS = 1  # of 20 weeks without a change
MARGIN = 0.05  # of the gate
GROWTH = 1.1  # of what is bounded, from the quarter before the last to the last


def faults(team: Team, trainer: Clone) -> list[str]:
    """What is not as it should be after the year, in sentences.

    Args:
        team: The people, and where everything is.
        trainer: The clone that trained.
    """
    weeks, history = read(team.folder), trainer.json("history", WORKLOAD, "--last", "0")
    model = snapshot.read(Project(trainer.root), WORKLOAD)
    return [
        *_events(team, weeks),
        *decisions(team, weeks, history),
        *_stored(trainer.json("verify")),
        *_versions(model, history, size.rows(trainer.root, team.database)),
        *_answers(team, weeks, trainer),
        *(bounds(weeks) if len(weeks) > SMALL.weeks else ()),  # in which little grows old
    ]


def _events(team: Team, weeks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether each event was seen for what it was, and only in its week."""
    plan = team.plan
    for what, first in (("drifted", plan.drift), ("worse", plan.drift + plan.lag)):
        seen = [week["week"] for week in weeks[: first + 1] if week[what]]
        if first not in seen or len(seen) > 1 + FALSE_ALARMS:
            yield f"up to week {first}, in which the new camera shows, weeks {seen} are {what}"
    noise = weeks[plan.noise]
    if noise["found"] < max(noise["wrong"] / 3, noise["listed"] / 2):
        yield "of {wrong} wrong labels, {found} are among {listed} suspects".format(**noise)
    refused = [week["week"] for week in weeks if week["state"] == "Refused"]
    if refused != [plan.corrupted]:
        yield f"the data of weeks {refused} was refused"
    if not any(week["removed"] for week in weeks[1:]):
        yield "nothing that had grown old was removed"
    ran = weeks[plan.upgrade + 1]["upgrade"]["ran"]
    if "preprocess" not in ran or {"pull", "validate", "train", "evaluate"} & set(ran):
        yield f"after the upgrade of preprocess, {ran} ran again"


def decisions(
    team: Team, weeks: Sequence[dict[str, Any]], history: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """Whether the ledger says what was played, and the champion is what follows from it."""
    decided = [(entry["action"], entry["version"]) for entry in history]
    played, champion = list[tuple[str, int]](), 0
    for week in weeks:
        for action, version in week["decided"]:
            played.append((action, version))
            champion = version if action in ("promoted", "rolled back") else champion
        if week["champion"] != champion:
            yield f"champion of week {week['week']} is {week['champion']}, not {champion}"
    if decided != played:
        yield f"the ledger says {decided}, and was played {played}"
    back = team.plan.rollback
    if weeks[back]["champion"] == weeks[back]["champion_before"]:
        yield "the rollback changed nothing"
    if not weeks[-1]["state"]:
        yield "the last week decided nothing"
    if [entry["before"] for entry in history[1:]] != [entry["digest"] for entry in history[:-1]]:
        yield "the entries of the ledger do not follow each other"
    if any(one["time"] > other["time"] for one, other in pairwise(history)):
        yield "the entries of the ledger are not in the order of the weeks"


def _stored(verified: dict[str, Any]) -> Iterator[str]:
    """Whether what is stored is whole; the command that says so ends with 1 if it is not."""
    yield from (f"{kind}: {verified[kind]}" for kind in ("damaged", "packages") if verified[kind])


def _versions(
    model: snapshot.Model, history: Sequence[dict[str, Any]], rows: dict[str, int]
) -> Iterator[str]:
    """Whether the registry has the versions of the history, and MLflow a run for each."""
    decided, registered = sorted({entry["version"] for entry in history}), sorted(model.versions)
    if registered != decided:
        yield f"the registry has the versions {registered}, and the history {decided}"
    if rows["mlflow runs"] != len(registered) + 1:  # that of the ledger
        yield f"MLflow has {rows['mlflow runs']} runs of {len(registered)} versions"


def _answers(team: Team, weeks: Sequence[dict[str, Any]], trainer: Clone) -> Iterator[str]:
    """Whether champions of all times answer still, and the last one as it did in its test."""
    champions, before = [week["champion"] for week in weeks], team.plan.noise - 1
    tested, right = _test_of(trainer.root, champions[-1]), dict[int, float]()
    truth = {sha256_of(path): path.parent.name for path in team.photos.rglob("*.png")}
    for version in sorted({champions[week] for week in (0, before, before + 1, -1)}):
        output = team.folder / f"version-{version}.parquet"
        places = ("--input", str(team.photos), "--output", str(output))
        trainer.json("predict", WORKLOAD, "--version", str(version), *places)
        table = pq.read_table(output)
        answers = dict(zip(table["sha256"].to_pylist(), table["label"].to_pylist(), strict=True))
        if answers.keys() != truth.keys() or None in answers.values():
            yield f"version {version} does not answer all images"
        right[version] = sum(answers[each] == truth[each] for each in tested) / len(tested)
        if version == champions[-1] and any(answers[each] != tested[each] for each in tested):
            yield "the champion does not answer as it did in its test"
    if right[champions[before + 1]] < right[champions[before]] - MARGIN:
        yield f"wrong labels have promoted a worse model: {right}"
    if right[champions[-1]] < max(right.values()):
        yield f"a champion of before is better than the last one: {right}"


def _test_of(root: Path, version: int) -> dict[str, str]:
    """What a version answered in its test, by the SHA-256 of the images."""
    project = Project(root)
    record = lineage.read(project, versions.find(project, WORKLOAD, str(version)))
    [key] = [made.key for made in record.steps if made.step == "evaluate"]
    folder = Store(project.store).folder("evaluate", key)
    table = pq.read_table(folder / "predictions.parquet")
    return dict(zip(table["sha256"].to_pylist(), table["prediction"].to_pylist(), strict=True))


def bounds(weeks: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Whether what runs leave stays small, in the last quarter compared with the one before."""
    quarter = len(weeks) // 4
    # What was measured before a week is what the week before it had left.
    measured = [week | {"images": weeks[at]["images"]} for at, week in enumerate(weeks[1:])]
    for what, of in QUANTITIES.items():
        values = [of(week) for week in measured]
        before, last = max(values[-2 * quarter : -quarter]), max(values[-quarter:])
        if last > GROWTH * before:
            yield f"{what}: {last:,.1f} in the last quarter, and {before:,.1f} in the one before"


def _files(week: dict[str, Any]) -> float:
    """All but DVC's cache, which has each version of the data, and what stays of each version."""
    disk = week["disk"]
    return float((disk[".retrain"] + disk["reports"] - week["trainings"]) / week["images"])


def _kept(week: dict[str, Any]) -> float:
    disk = week["disk"]
    kept = week["trainings"] + disk["mlruns"] + disk["mlflow.db"]
    return float(kept / week["rows"]["mlflow model_versions"])


QUANTITIES: Mapping[str, Callable[[dict[str, Any]], float]] = {
    "bytes of files for each image": _files,
    "bytes in MLflow and of trainings for each version": _kept,
    "runs in Prefect": lambda week: week["rows"]["prefect flow_run"],
    "lines of logs for each task in Prefect": lambda week: (
        week["rows"]["prefect log"] / week["rows"]["prefect task_run"]
    ),
}


def main() -> None:
    """Checks a year."""
    folder, plan, api = sys.argv[1:]
    team = Team(Path(folder), Plan(**json.loads(plan)))
    wrong = faults(team, Clone(team.folder / "trainer", api))
    write_json(team.folder / FAULTS, wrong)


if __name__ == "__main__":
    main()
