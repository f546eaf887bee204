"""Plays weeks of the year, in a process that runs the code of the clone that trains.

    python -m tests.year.weeks FOLDER PLAN FIRST END API

Each week is what a schedule and people do: on Sunday what has grown old is removed, on Monday the
newest commit is taken and trained on, then the champion classifies what comes in, and labels of
what it classified weeks ago are compared with its answers. What a week led to is a line of JSON in
`weeks.jsonl`.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from retrain.project import Project
from retrain.registry import snapshot, trust
from retrain.runs import records
from tests.flows.conftest import Clone
from tests.year import size
from tests.year.age import make_older
from tests.year.images import Picture, pictures
from tests.year.plan import Plan, monday
from tests.year.team import WORKLOAD, Team

WEEKS = "weeks.jsonl"


@dataclass(frozen=True)
class Week:
    """A week that is played.

    Attributes:
        number: From 0.
        team: The people, and where everything is.
        trainer: The clone that trains.
        decided: What was decided in it about which version.
    """

    number: int
    team: Team
    trainer: Clone
    decided: list[tuple[str, int]] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        return self.team.plan

    @cached_property
    def answers(self) -> dict[int, int]:
        """Which version has answered in which week before."""
        return {week["week"]: week["answered"] for week in read(self.team.folder)}

    def play(self) -> dict[str, Any]:
        """Plays the week; returns what it led to."""
        date = monday(self.number).date().isoformat()
        found: dict[str, Any] = {"week": self.number, "date": date, "decided": self.decided}
        if self.number:
            make_older(self.trainer.root, self.team.database)
            found["removed"] = self.retrain("gc", "--yes", "--days", str(self.plan.days))["bytes"]
            found["disk"] = size.disk(self.trainer.root)
            found["trainings"] = size.trainings(self.trainer.root)
            found["rows"] = size.rows(self.trainer.root, self.team.database)
        with dated(self.number):
            if self.number == self.plan.rollback + 1:
                version = read(self.team.folder)[self.plan.rollback]["champion_before"]
                self.roll("it was right", "--to", str(version))
            if self.number == self.plan.upgrade + 1:
                found["upgrade"] = self.train()
            self.deliver()
            found |= self.train()
            if self.number == self.plan.rollback:
                found["champion_before"] = self.champion()
                version = self.roll("night images got worse")
                self.train()  # which does not bring it back
                assert self.champion() == version
        found["champion"] = self.champion()
        return found | self.predict() | self.look_back() | self.find_suspects()

    def retrain(self, *arguments: str, code: int = 0) -> Any:
        """Calls the command line in the clone that trains; its document."""
        return self.trainer.json(*arguments, code=code)

    def deliver(self) -> None:
        """Has people deliver what came in weeks ago, after they have mended what was wrong."""
        if not self.number:
            return
        if self.number == self.plan.noise + 1:
            self.team.correct(self.number, self.team.folder / "suspects.csv")
        if self.number == self.plan.corrupted + 1:
            self.team.mend(self.number, self.labelled(self.number - 1))
        corrupted = self.number == self.plan.corrupted
        self.team.deliver(self.number, self.labelled(self.number), corrupted=corrupted)
        self.trainer.run("git", "pull", "--quiet", "--ff-only")

    def labelled(self, week: int) -> Iterator[Picture]:
        """The images that are delivered in a week."""
        return pictures(self.plan, week - self.plan.lag)

    def train(self) -> dict[str, Any]:
        """Trains on what was delivered; a corrupted delivery is refused."""
        if self.number == self.plan.corrupted:
            refused = self.retrain("train", WORKLOAD, code=1)["error"]
            history = self.trainer.root / "reports" / WORKLOAD / "index.html"
            assert ">refused<" in history.read_text(encoding="utf-8")
            images = read(self.team.folder)[-1]["images"]
            return {"state": "Refused", "error": refused, "version": None, "images": images}
        document = self.retrain("train", WORKLOAD)
        if document["state"] != "Unchanged":
            self.decided.append((document["state"].lower(), document["model"]["version"]))
        return {
            "state": document["state"],
            "verdict": document["decision"]["verdict"],
            "version": document["model"]["version"],
            "accuracy": document["metrics"]["accuracy"],
            "images": sum(document["data"]["rows"].values()),
            "ran": [step["step"] for step in document["steps"] if not step["cached"]],
            "outcome": document["outcome"],
            "took": document["seconds"],
        }

    def roll(self, reason: str, *arguments: str) -> int:
        """Makes a former champion the champion again; returns its number."""
        done = self.retrain("rollback", WORKLOAD, "--reason", reason, *arguments)
        self.decided.append(("rolled back", done["version"]))
        return int(done["version"])

    def champion(self) -> int:
        """The number of the version in production."""
        return snapshot.read(Project(self.trainer.root), WORKLOAD).aliases["champion"]

    def predict(self) -> dict[str, Any]:
        """Classifies what comes in; how much of it was right, and whether it has drifted."""
        folder, output = self.team.folder / "incoming", self.team.folder / "answers.parquet"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        truth = {}
        for picture in pictures(self.plan, self.number):
            (folder / picture.name).write_bytes(picture.content)
            truth[picture.name] = picture.label
        places = ("--input", str(folder), "--output", str(output), "--force")
        document = self.retrain("predict", WORKLOAD, *places)
        answers = pq.read_table(output, columns=["path", "label"]).to_pylist()
        right = sum(truth[answer["path"]] == answer["label"] for answer in answers)
        found = {
            "answered": document["model"]["version"],
            "production": right / len(truth),
            "drifted": document["drift"]["drifted"],
        }
        if self.number == self.plan.drift:
            drift = self.retrain("drift", WORKLOAD, "--input", str(folder))
            assert drift["state"] == "Drifted", drift["outcome"]
        return found

    def look_back(self) -> dict[str, Any]:
        """Adds the labels of what was answered some weeks ago, and compares."""
        then = self.number - self.plan.lag
        if then < 0:
            return {"worse": None}
        file = self.team.folder / "labels.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["sha256", "label"])
            writer.writerows((each.sha256, each.given) for each in pictures(self.plan, then))
        assert self.retrain("labels", "add", WORKLOAD, str(file))["new"] == self.plan.size(then)
        version = str(self.answers[then])
        found = self.retrain("production", WORKLOAD, "--version", version)["production"]
        return {"worse": found["worse"], "labelled": found["labelled"]}

    def find_suspects(self) -> dict[str, Any]:
        """Looks for the wrong labels of a delivery, and has people write the right ones down."""
        if self.number != self.plan.noise:
            return {}
        document = self.retrain("suspects", WORKLOAD)
        listed = self.trainer.root / document["look"]["csv"]
        wrong = {
            f"{each.given}/{each.name}": each.label
            for each in self.labelled(self.number)
            if each.given != each.label
        }
        with listed.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            row["corrected"] = wrong.get(row["path"], "")
        with (self.team.folder / "suspects.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        found = [row for row in rows if row["corrected"]]
        return {"wrong": len(wrong), "found": len(found), "listed": len(rows)}


@contextmanager
def dated(week: int) -> Iterator[None]:
    """Gives the entries of the ledger the time of a week: they cannot be made older later.

    The documents of runs, which stand among them in the history, have it too.
    """

    class Played(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return monday(week)

    with patch.object(trust, "datetime", Played), patch.object(records, "datetime", Played):
        yield


def read(folder: Path) -> list[dict[str, Any]]:
    """What the weeks that were played have led to."""
    file = folder / WEEKS
    return [json.loads(line) for line in file.open(encoding="utf-8")] if file.exists() else []


def line_of(week: dict[str, Any]) -> str:
    """A week in a line, for people."""
    version = f"v{week['version']}" if week["version"] else ""
    what = f"{week['state']} {version} {week.get('verdict', '')}"
    text = f"week {week['week']:2}  {week['date']}  {what:<26} champion v{week['champion']:<3}"
    if "accuracy" in week:
        text += f" {week['accuracy']:6.1%} of the test of {week['images']:,} images,"
    text += f" {week['production']:6.1%} in production"
    if "disk" in week:
        text += f"; {sum(week['disk'].values()) / 1e6:.1f} MB"
    marks = [name for name in ("drifted", "worse") if week[name]]
    return f"{text}  {' '.join(marks)}".rstrip()


def main() -> None:
    """Plays some weeks."""
    folder, plan, (first, end) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:5])
    team, trainer = Team(folder, Plan(**json.loads(plan))), Clone(folder / "trainer", sys.argv[5])
    for number in range(first, end):
        began = monotonic()
        week = Week(number, team, trainer).play()
        week["seconds"] = round(monotonic() - began, 1)
        with (folder / WEEKS).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(week) + "\n")
        print(line_of(week), flush=True)


if __name__ == "__main__":
    main()
