"""Promotions, approvals and rollbacks that SIGKILL ends at each of their calls to the registry."""

import multiprocessing
import os
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.tracking._tracking_service import utils

from retrain.project import Project
from retrain.registry import decisions, packages, tracking, versions
from tasks.promote import package as packaging
from tests import templates
from tests.tasks.promote.conftest import approve, champion, roll_back, run_on, train, trained_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("not_loaded")]

# How the names of calls begin that change nothing.
READS = ("download", "get", "list", "load", "search", "tracking")
REASON = "the night images look right"


def promote(images, project, seed, before):
    """Promotes a model, as a run does that finds the champion before, or what a kill has left."""
    number = champion(project)
    verdict = "first" if before is None else "better"
    if number != before:
        verdict = "champion already"
    run_on(images, project, trained_in(project, seed), verdict, number)


def roll_back_once(images, project):
    """As a person who gives the command again only if it was not carried out."""
    if champion(project) == 3 or not decisions.read(project, "toy").is_settled:
        roll_back(project, REASON)


ACTIONS = {  # what there is before, what is done, and the champion before and after
    "first": (None, lambda images, clone: promote(images, clone, 0, None), None, 1),
    "better": ("one", lambda images, clone: promote(images, clone, 1, 1), 1, 2),
    "approved": ("pair", lambda _, clone: approve(clone, REASON), 1, 2),
    "rolled back": ("three", roll_back_once, 3, 2),
}


def is_killed(number: int, act) -> bool:
    """Has a fork act, and kills it at its call of that number; False if it makes fewer."""
    if pid := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), code
        return code != 0
    made: list[str] = []

    def reach(name):
        if len(made) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(name)

    def counted(name, call):
        def wrapper(*args, **kwargs):
            reach(name)
            return call(*args, **kwargs)

        return wrapper

    def copy(source, target, copyfile=shutil.copyfile, **kwargs):
        if made[-1:] != ["copy"]:  # one file of an upload, which is half there then
            content = Path(source).read_bytes()
            Path(target).write_bytes(content[: len(content) // 2])
            reach("copy")
        return copyfile(source, target, **kwargs)

    try:
        for name, call in list(vars(MlflowClient).items()):
            if callable(call) and not name.startswith(("_", *READS)):
                setattr(MlflowClient, name, counted(name, call))
        shutil.copyfile = copy
        act()
        os._exit(0)
    finally:
        os._exit(1)


def state(project):
    """What the registry says, without what is another in each process: ids and times."""
    found = tracking.client(project).search_model_versions("name = 'toy'")
    written = decisions.read(project, "toy")
    numbers = sorted(int(version.version) for version in found)
    for number in numbers:  # each version is whole
        version = versions.get(project, "toy", number)
        folder = packages.fetch(project, version, project.root)
        packaging.check_files(folder, version, packaging.example_for(project, version))
        assert packages.read_card(project, version)
    return {
        "versions": numbers,
        "tags": [sorted(version.tags) for version in found],
        "aliases": tracking.client(project).get_registered_model("toy").aliases,
        "ledger": [
            (e.action, e.version, e.previous, e.reason, e.document) for e in written.entries
        ],
        "settled": written.is_settled,
        "waiting": written.waiting,
        "withdrawn": list(written.withdrawn),
    }


@pytest.mark.parametrize("name", ACTIONS)
def test_the_next_process_ends_where_one_that_was_not_killed_does(
    project, images, tmp_path_factory, request, name
):
    made, _, before, _ = ACTIONS[name]
    if made:
        request.getfixturevalue(made)
    if before in (None, 1) and made != "pair":
        train(project, seed=before or 0)
    # Forks are of a new process: this one has threads of other tests, of Ray say.
    arguments = (name, images, project.root, tmp_path_factory.mktemp("clones"))
    process = multiprocessing.get_context("spawn").Process(target=kill_at_each, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def kill_at_each(name: str, images, root: Path, folder: Path) -> None:
    """Kills a process at each of its calls, and has the next one act; clones go into a folder."""
    packaging.check_answers = lambda *_: None  # as `not_loaded` has it
    _, act, before, after = ACTIONS[name]

    def clone(name) -> Project:
        utils._artifact_repos_cache.clear()  # it knows the folder of a run by the id alone
        templates.copy_project(root, folder / str(name))
        return Project(folder / str(name))

    undisturbed = clone("undisturbed")
    act(images, undisturbed)
    expected, number = state(undisturbed), 0
    assert champion(undisturbed) == after
    while is_killed(number, partial(act, images, clone(number))):
        killed = Project(folder / str(number))
        assert champion(killed) in (before, after)
        act(images, killed)
        assert state(killed) == expected, number
        number += 1
    assert number > 5
