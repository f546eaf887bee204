"""The people of the year: they deliver data, correct labels, and take newer versions of the code.

They work in a clone of their own. What they push, the clone that trains takes.
"""

import shutil
from collections.abc import Iterable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flow import copy_project
from tests.flows.conftest import Clone
from tests.year.images import Picture, first_pictures
from tests.year.plan import Plan, monday

WORKLOAD = "digits"
PARAMS = """
workloads:
  digits:
    data: {{path: data/digits}}
    images: {{size: 8, channels: 1}}
    model: {{family: vit, patch_size: 4, hidden_size: 64, layers: 2, heads: 4}}
    train:
      epochs: {plan.epochs}
      batch_size: 64
      lr: 0.003
      schedule: one_cycle
      seed: 0
    scale: {{workers: 0}}
    gate:
      min: {{accuracy: 0.7}}
      margin: 0.05
"""
VACUUM = "[server.services.db_vacuum]"
CODE = "tasks/preprocess/step.py"  # that the newer version changes


@dataclass(frozen=True)
class Team:
    """The people, in a folder with all repositories.

    Attributes:
        folder: `project.git`, whose versions the team takes; `team.git`, its own; `people`, their
            clone; `trainer`, the clone that trains; `remote`, of DVC; and what comes in.
        plan: What happens when.
    """

    folder: Path
    plan: Plan

    @property
    def people(self) -> Clone:
        """The clone in which people work."""
        return Clone(self.folder / "people", "")

    @property
    def database(self) -> Path:
        """Of the Prefect server."""
        return self.folder / "server" / "prefect.db"

    @property
    def photos(self) -> Path:
        """The data in that clone."""
        return self.people.root / "data" / "digits"

    def found(self) -> None:
        """Makes the repositories, the workload and the first data."""
        project = copy_project(self.folder / "project")
        Clone(project, "").run("git", "checkout", "-q", "-b", "main")
        self._commit(project, 0, "The project", ".")
        self._git(self.folder, "clone", "-q", "--bare", "project", "project.git")
        self._git(self.folder, "clone", "-q", "--bare", "project", "team.git")
        self._git(self.folder, "clone", "-q", "team.git", "people")
        root = self.people.root
        self._git(root, "remote", "add", "upstream", str(self.folder / "project.git"))
        (root / "team" / "params.yaml").write_text(PARAMS.format(plan=self.plan))
        # Prefect's server looks for old runs each hour; a week of the year takes seconds.
        self.people.edit("prefect.toml", VACUUM, f"{VACUUM}\nloop_seconds = 2")
        self.people.edit("prefect.toml", "= 7776000", f"= {self.plan.days * 86400}")
        self._dvc("remote", "add", "--quiet", "--default", "team", str(self.folder / "remote"))
        self._deliver_all(first_pictures(self.plan))
        self._commit(root, 0, "The workload", "team", "prefect.toml", ".dvc/config")
        self._publish(0, "The first images")
        self._git(self.folder, "clone", "-q", "team.git", "trainer")

    def deliver(self, week: int, pictures: Iterable[Picture], *, corrupted: bool) -> None:
        """Delivers images with the labels that people gave them."""
        files = self._deliver_all(pictures)
        if corrupted:
            for file in files[::4]:
                file.write_bytes(file.read_bytes()[:60])
            (self.photos / "10").mkdir()
            for number in range(3):
                (self.photos / "10" / f"{number}.png").touch()
        self._publish(week, f"Images of week {week - self.plan.lag}")

    def mend(self, week: int, pictures: Iterable[Picture]) -> None:
        """Delivers the images of a corrupted delivery again."""
        shutil.rmtree(self.photos / "10")
        self._deliver_all(pictures)
        self._publish(week, "The broken images, whole")

    def correct(self, week: int, suspects: Path) -> int:
        """Takes corrected labels over; returns how many."""
        done = self.people.json("labels", "import", WORKLOAD, str(suspects), "--yes")
        assert done["applied"]
        self._publish(week, f"Labels of {WORKLOAD}: {len(done['changes'])} changed")
        return len(done["changes"])

    def upgrade(self, week: int) -> None:
        """Merges a newer version of the project, as `make upgrade` does."""
        newer = Clone(self.folder / "project", "")
        path = newer.root / CODE
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}\n\nNEWER = True\n", encoding="utf-8")
        self._commit(newer.root, week, "A newer version", CODE)
        self._git(newer.root, "push", "-q", str(self.folder / "project.git"), "main")
        self._git(self.people.root, "fetch", "-q", "upstream")
        self._git(self.people.root, "merge", "-q", "--no-edit", "upstream/main", week=week)
        self._git(self.people.root, "push", "-q")

    def _deliver_all(self, pictures: Iterable[Picture]) -> list[Path]:
        files = []
        for picture in pictures:
            files.append(self.photos / picture.given / picture.name)
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            files[-1].write_bytes(picture.content)
        return files

    def _publish(self, week: int, message: str) -> None:
        """Commits the data and pushes it, as the documentation says."""
        self._dvc("add", "--quiet", "data")
        self._dvc("push", "--quiet", "data")
        self._commit(self.people.root, week, message, "data.dvc")
        self._git(self.people.root, "push", "-q")

    def _dvc(self, *arguments: str) -> None:
        from dvc.cli import main

        with chdir(self.people.root):
            assert main([*arguments]) == 0

    def _commit(self, root: Path, week: int, message: str, *names: str) -> None:
        self._git(root, "add", *names)
        self._git(root, "commit", "-q", "-m", message, week=week)

    def _git(self, root: Path, *arguments: str, week: int = 0) -> None:
        at = monday(week).isoformat()
        who = ("-c", "user.name=team", "-c", "user.email=team@example.org")
        Clone(root, "").run(
            "git", *who, *arguments, GIT_AUTHOR_DATE=at, GIT_COMMITTER_DATE=at
        )  # fmt: skip
