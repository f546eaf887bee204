"""A driver and a machine that share nothing but a remote store, both in this process."""

import shutil
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from retrain import exchange
from retrain.atomic import write_json
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.outputs import MANIFEST, Plan, digest_of_output, list_files
from retrain.project import CODE, find_project
from retrain.runs import console
from retrain.servers import machines
from retrain.step import Workspace
from retrain.store import Store
from tasks.compute import machine, spread

PARAMS = Path(__file__).parents[3] / "params.yaml"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """The store of a clone, which is the working directory, with an artifact of two files."""
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copy(PARAMS, clone)
    monkeypatch.chdir(clone)
    monkeypatch.delenv("RETRAIN_STORE", raising=False)
    monkeypatch.setenv("RETRAIN_STORE_REMOTE", f"file://{tmp_path}/remote")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    store, made = Store.of(find_project()), Plan("toy", {}, {}, {}, {})
    folder = store.folder("toy", made.key)
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / name).write_text(name * 3)
    files = list_files(folder)
    manifest = {"digest": digest_of_output({}, files), "facts": {}, "files": files}
    write_json(folder / MANIFEST, manifest | {"provenance": {"run": "1"}, "plan": asdict(made)})
    return store


@pytest.fixture
def on_machine(tmp_path, monkeypatch):
    """Calls packed functions as another machine does."""

    def call(function, errand):
        with monkeypatch.context() as there:
            there.setattr(machines, "node_root", lambda: tmp_path / "machine")
            return machine.Errands(*function)(errand)

    return call


def double(folder: Path, output: Path, name: str) -> Path:
    """What a step's function does: it reads a file of an artifact, and writes one."""
    text = (folder / name).read_text()
    (output / name).write_text(text * 2)
    return folder


def run(driver, on_machine, names=("one",), more=()):
    """Has the machine do the work; gives the scratch, and what each call returned."""
    folder, scratch = driver.folder(*next(driver.entries())), driver.scratch("twice", "key")
    function = spread.packed(partial(double, folder, scratch))
    packed = spread.errands(
        names, lambda name: [folder / name, *more], writes := lambda name: [scratch / name]
    )
    answers = (on_machine(function, errand) for errand in packed)
    return scratch, list(spread.recorded(answers, names, writes))


def test_a_machine_has_what_its_units_read_and_the_driver_records(driver, on_machine, tmp_path):
    (extra := driver.scratch("twice", "key") / "extra").write_text("read too")
    scratch, [read] = run(driver, on_machine, more=[extra])
    there, step, key = tmp_path / "machine", *next(driver.entries())
    assert read == there / step / key
    assert {path.name for path in read.iterdir()} == {"one", MANIFEST}
    assert [p.name for p in (there / "scratch/twice/key").iterdir()] == ["extra"]
    assert not (scratch / "one").exists()
    assert spread.made([scratch / "one", scratch / "two"]) == {scratch / "one"}
    workspace = Workspace(tmp_path / "output", scratch, "key", "toy", find_project())
    spread.add(scratch / "one", workspace, "a/one")
    [entry] = workspace.sent
    assert (entry["path"], entry["bytes"]) == ("a/one", len("one" * 6))
    spread.receive([scratch / "one"], scratch)
    assert (scratch / "one").read_text() == "one" * 6
    spread.add(scratch / "one", workspace, "b/one")
    assert (workspace.folder / "b/one").read_text() == "one" * 6


def test_a_record_whose_content_is_gone_or_changed_is_not_believed(driver, on_machine, tmp_path):
    scratch, _ = run(driver, on_machine, names=("one", "two"))
    files = [scratch / "one", scratch / "two"]
    assert spread.made(files) == {*files}
    workspace = Workspace(tmp_path / "output", scratch, "key", "toy", find_project())
    for file in files:
        spread.add(file, workspace, file.name)
    paths = [exchange.file_path(entry["sha256"]) for entry in workspace.sent]
    driver.remote.delete(paths[:1])
    assert spread.made(files) == {files[1]}
    driver.remote.write(paths[1], b"TWO" * 6)  # of the same size
    with pytest.raises(RemoteError, match="two has changed in the remote store"):
        spread.receive(files[1:], scratch)
    assert spread.made(files) == set()


def test_a_file_that_has_changed_in_the_remote_store_is_made_again(driver, on_machine):
    step, key = next(driver.entries())
    spread.send(driver, step, key)
    [one, _] = driver.inspect(step, key)[0]["files"]
    driver.remote.write(exchange.file_path(one["sha256"]), b"ONE" * 3)
    with pytest.raises(DamagedArtifactError, match="one has changed in the remote store"):
        run(driver, on_machine)
    assert driver.find(step, key) is None


def test_what_cannot_be_sent_is_not_worked_on(driver, on_machine, tmp_path):
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/artifacts").write_text("a file is no folder")
    with pytest.raises(RemoteError, match="The output of toy could not be sent"):
        run(driver, on_machine)


def test_paths_become_those_of_the_machine(driver, on_machine, tmp_path, monkeypatch):
    project = find_project()
    monkeypatch.setenv("RETRAIN_STORE", str(tmp_path / "machine"))
    packed = machine.pack([Path("/etc"), project.root / "models", "text"], project)
    assert machine.unpack(packed) == [Path("/etc"), CODE.parent / "models", "text"]


@pytest.mark.parametrize(
    ("remote", "is_free", "says"),
    [
        ("s3://nowhere", True, ""),
        ("s3://nowhere", False, "Only this machine of the cluster reads the input"),
        ("", True, "Only this machine of the cluster does the work before and after a training"),
    ],
)
def test_work_that_other_machines_cannot_do_stays_and_a_line_says_so(
    driver, ray_session, monkeypatch, capsys, remote, is_free, says
):
    monkeypatch.setenv("RETRAIN_STORE_REMOTE", remote)
    monkeypatch.setattr(machines, "machines_share_the_store", lambda: False)
    spread._say_that_it_stays.cache_clear()
    with console.shown_on(sys.stderr):
        places = [spread.place(is_free) for _ in range(2)]
    assert [bool(place) for place in places] == [bool(says)] * 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(says)
    assert said.count("Only") == bool(says)
