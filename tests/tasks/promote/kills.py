"""Ends promotions, approvals and rollbacks with SIGKILL between every two calls to the registry.

    python -m tests.tasks.promote.kills FOLDER

Each is run once undisturbed, which counts its calls. Then, for each of them, a process starts from
the same registry and is killed there, and another one does the same again. What both left goes to
`FOLDER/told.json`. All processes are forks of this one, which has imported what they need.
"""

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlflow import MlflowClient

from retrain import tracking
from retrain.project import Project
from retrain.registry import audit, decisions, model_card, packages, snapshot, versions
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.promote import check, step
from tasks.promote.approval import review
from tasks.promote.rollback import roll_back
from tests import templates
from tests.tasks.promote.conftest import (
    AUTOMATIC,
    COLUMNS,
    DATA,
    FAST,
    MANUAL,
    PROMOTE,
    ROWS,
    decide,
)
from tests.tasks.toy_model import workspace, write_data, write_model, write_report, write_scores

# How the names of calls begin that change nothing.
READS = ("download", "get", "list", "load", "search", "tracking")
ENTRY = ("before", "digest", "time")  # of an entry, what is another in each process
NOTHING, KILLED = "nothing", "killed"
REASON = "the night images look right"


@dataclass(frozen=True)
class World:
    """What there is before anything is registered.

    Attributes:
        project: The clone, always at the same place: MLflow's database has its path.
        images: The outputs of `pull` and `validate`.
        models: Those of `train` and `evaluate`, of two models.
    """

    project: Project
    images: tuple[Artifact, Artifact]
    models: tuple[tuple[Artifact, Artifact], ...]

    def promote(self, model: int, rules: Gate = AUTOMATIC) -> None:
        """Promotes a model as a run does, whatever there is already."""
        champion = self.champion()
        verdict = "better" if champion else "first"
        if champion == model + 1:
            verdict = "champion already"
        trained, scores = self.models[model]
        made = (DATA, *self.images, trained, scores, decide(verdict, champion), PROMOTE)
        with TemporaryDirectory() as folder:
            place = workspace(Path(folder) / "promote", self.project.root)
            step.promote(COLUMNS, rules, *made, place)

    def champion(self) -> int | None:
        """The number of the version that is served."""
        found = versions.champion(self.project, "toy")
        return found and found.version

    def roll_back(self) -> None:
        """Goes back to the first version, unless that is done."""
        if self.champion() != 1 or decisions.read(self.project, "toy").unfinished:
            roll_back(self.project, "toy", REASON)


@dataclass(frozen=True)
class Action:
    """What is killed.

    Attributes:
        before: The action that leaves the registry that this one finds.
        act: Does it, or does the rest.
        kill_from: The first call that one of the killed processes does not make; the first of all
            if None.
        is_killed: False for one that only prepares another.
    """

    before: str
    act: Callable[[World], object]
    kill_from: str | None = None
    is_killed: bool = True

    def points(self, made: Sequence[str]) -> range:
        """How many calls are made by each process that is killed.

        Args:
            made: Those of a process that is not.
        """
        first = made.index(self.kill_from) if self.kill_from else 0
        return range(first, len(made) + 1) if self.is_killed else range(0)


ACTIONS = {
    "first": Action(NOTHING, lambda world: world.promote(0)),
    # Until then, files are uploaded, as for the first.
    "better": Action("first", lambda world: world.promote(1), "create_model_version"),
    "waiting": Action("first", lambda world: world.promote(1, MANUAL), is_killed=False),
    "approved": Action("waiting", lambda world: review(world.project, "toy", "approve", REASON)),
    "rolled back": Action("better", World.roll_back),
}


@contextmanager
def calls(kill_at: int | None = None) -> Iterator[list[str]]:
    """Notes the calls that change the registry, and ends this process at one of them.

    An upload of a folder counts twice: a process may also be killed with half of a file written.

    Args:
        kill_at: How many calls are made. After the last one, the end of the block is killed.
    """
    made: list[str] = []
    within: list[str] = []  # the call that is being made

    def reach(name: str) -> None:
        if len(made) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(name)

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(client: MlflowClient, *args: Any, **kwargs: Any) -> Any:
            if within:  # one that another one makes
                return call(client, *args, **kwargs)
            aliased = [str(args[1])] if "alias" in name else []
            reach(" ".join([name, *aliased]))
            within.append(name)
            try:
                return call(client, *args, **kwargs)
            finally:
                within.clear()

        return wrapper

    copyfile = shutil.copyfile

    def copy(source: Any, target: Any, **kwargs: Any) -> Any:
        half = f"half of {within[0]}" if within else ""
        if half and (not made or made[-1] != half):
            content = Path(source).read_bytes()
            Path(target).write_bytes(content[: len(content) // 2])
            reach(half)
        return copyfile(source, target, **kwargs)

    for name, call in list(vars(MlflowClient).items()):
        if callable(call) and not name.startswith(("_", *READS)):
            setattr(MlflowClient, name, noted(name, call))
    shutil.copyfile = copy
    yield made
    reach("end")
    made.pop()


def state(project: Project) -> dict[str, Any]:
    """What the registry says, without what is another in each process: ids and times."""
    client = tracking.client(project)
    model, runs = client.get_registered_model("toy"), client.search_runs(["1"])
    listed = client.search_model_versions("name = 'toy'", order_by=["version_number ASC"])
    names = {run.info.run_id: run.info.run_name for run in runs}
    written = decisions.read(project, "toy")
    return {
        "versions": [
            {
                "version": each.version,
                "tags": {name: v for name, v in each.tags.items() if name != "retrain.lineage"},
                "aliases": each.aliases,
                "description": each.description,
                "run": names[each.run_id],
                "source": names[Path(each.source).parents[2].name],
            }
            for each in listed
        ],
        "aliases": model.aliases,
        "tags": sorted(model.tags),
        "runs": sorted([name.info.run_name, name.info.status] for name in runs),
        "ledger": [
            {name: value for name, value in asdict(entry).items() if name not in ENTRY}
            for entry in written.entries
        ],
        "unfinished": len(written.unfinished),
        "waiting": written.waiting and written.waiting.version,
        "champions": list(written.line),
        "withdrawn": list(written.withdrawn),
        "files": _files(project, names, {each.tags["retrain.lineage"] for each in listed}),
        "faults": [f.what for f in (*audit.faults(project), *audit.lineage_faults(project))],
    }


def _files(project: Project, names: dict[str, str], lineages: set[str]) -> dict[str, str]:
    """The artifacts, each with its content; those of MLflow and the lineages have the time in it.

    A lineage of a version that was not registered is left behind.
    """
    root, found = project.root / "mlruns" / "toy", {}
    for path in sorted(root.rglob("*")):
        if path.is_dir() or (path.parent.name == "lineage" and path.stem not in lineages):
            continue
        parts = [names.get(part, part) for part in path.relative_to(root).parts]
        timed = path.name == check.MLMODEL or path.parent.name == "lineage"
        place = "/".join([*parts[:-1], "a lineage"] if path.parent.name == "lineage" else parts)
        found[place] = "" if timed else sha256(path.read_bytes()).hexdigest()
    return found


def between(world: World) -> dict[str, Any]:
    """What there is after a kill: what is served, what could be, and what is wrong."""
    model, project = snapshot.read(world.project, "toy"), world.project
    numbers = [int(each.version) for each in tracking.client(world.project).search_model_versions()]
    for number in numbers:
        version = versions.get(world.project, "toy", number)
        assert version is not None
        packages.download(world.project, version)
        check.check_files(
            packages.fetch(world.project, version, world.project.root),
            version,
            check.example_for(world.project, version),
        )
        assert model_card.read(world.project, version)
    return {
        "champion": world.champion(),
        "aliases": model.aliases,
        "versions": sorted(numbers),
        "faults": [f.what for f in (*audit.faults(project), *audit.lineage_faults(project))],
    }


def undisturbed(world: World, action: Action) -> Any:
    """Does an action; returns its calls, and what came of it."""
    with calls() as made:
        action.act(world)
    return made, state(world.project), between(world)


def killed(world: World, action: Action, number: int) -> None:
    """Does an action, and is killed instead of a call."""
    with calls(number):
        action.act(world)


def again(world: World, action: Action) -> Any:
    """Does the rest of an action; returns what there was before, and what came of it."""
    found = between(world)
    action.act(world)
    return found, state(world.project)


def forked(answer: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    """Has a fork call a function.

    Args:
        answer: A file for what it returns.
        function: What it calls; it returns what JSON can hold.
        *arguments: Of the function.

    Returns:
        What the function returned; `KILLED` if SIGKILL ended the fork.
    """
    answer.unlink(missing_ok=True)
    if not (pid := os.fork()):
        try:
            told = {"answer": function(*arguments)}
        except BaseException:
            told = {"error": traceback.format_exc()}
        answer.write_text(json.dumps(told), encoding="utf-8")
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return KILLED
    assert code == 0, code
    told = json.loads(answer.read_text(encoding="utf-8"))
    assert "error" not in told, told["error"]
    return told["answer"]


def make(root: Path) -> World:
    """Data and two models, in a folder that is made."""
    images = write_data(root / "data", ROWS)
    trained = [write_model(root / f"trained-{seed}" / "train", seed=seed) for seed in range(2)]
    scores = [write_scores(each.folder.parent / "scores", each, ROWS) for each in trained]
    return World(Project(root), images, tuple(zip(trained, scores, strict=True)))


def begin(world: World) -> None:
    """Makes MLflow's database, with the runs of the trainings."""
    templates.place_mlflow_database(world.project.root)
    for trained, _ in world.models:
        write_report(trained, world.project)


def restore(root: Path, copy: Path) -> None:
    """Puts a copy of a clone where the clone is."""
    shutil.rmtree(root)
    shutil.copytree(copy, root)


def main(folder: Path) -> None:
    """Does all that, and writes what came of it."""
    # What takes 5 s, and asks the registry nothing: to load the version. See `test_check.py`.
    check.check_answers = lambda *_: FAST  # type: ignore[assignment]
    step.start_ahead = lambda: None  # type: ignore[assignment]
    # What is imported and cached here, each fork finds; its database is none of theirs.
    rehearsal = make(folder / "rehearsal")
    begin(rehearsal)
    rehearsal.promote(0)
    root, registries, answer = folder / "clone", folder / "registries", folder / "answer.json"
    world = make(root)
    forked(answer, begin, world)
    shutil.copytree(root, registries / NOTHING)
    told = {}
    for name, action in ACTIONS.items():
        restore(root, registries / action.before)
        made, last, end = forked(answer, undisturbed, world, action)
        shutil.copytree(root, registries / name)
        points = {}
        for number in action.points(made):
            restore(root, registries / action.before)
            assert forked(answer, killed, world, action, number) == KILLED, (name, number)
            points[number] = forked(answer, again, world, action)
        told[name] = {"calls": made, "last": last, "end": end, "points": points}
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
