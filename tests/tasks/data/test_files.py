"""The files of pulled data that this machine has only in part; a shared folder is the remote."""

import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

from retrain import exchange
from retrain.atomic import write_json
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.outputs import MANIFEST, Plan, digest_of_output, list_files
from retrain.project import Project
from retrain.remote import Remote
from retrain.store import Store
from retrain.workload import Data
from tasks.compute import machine
from tasks.data import files as data_files, room
from tasks.data.files import Files
from tasks.data.raw_dataset import open_raw_dataset
from tests.tasks.toy_data import png, write_files, write_parquet

NAMES = ["a.b/1.png", "a/1.png", "a/.hidden/2.png", ".x.png", "b/c/3.png", "notes.csv"]
CONTENT = {name: name.encode() * 100 for name in NAMES}
MADE = Plan("pull", {}, {}, {}, {})


def publish(folder, remote, content, **facts):
    """Another machine makes pulled data and sends it."""
    write_files(folder / "data", content)
    files = list_files(folder)
    manifest = {"digest": digest_of_output(facts, files), "facts": facts, "files": files}
    manifest |= {"provenance": {"run": "1"}, "plan": asdict(MADE)}
    exchange.send(remote, "pull", MADE.key, manifest, folder)
    write_json(folder / MANIFEST, manifest)


@pytest.fixture
def remote(tmp_path):
    return Remote(f"file://{tmp_path}/remote")


@pytest.fixture
def store(tmp_path, remote):
    """A machine that knows of the data and has none of it."""
    publish(tmp_path / "other", remote, CONTENT)
    return Store(tmp_path / "store", remote)


@pytest.fixture
def pulled(store):
    return store.find("pull", MADE.key)


@pytest.fixture
def files(pulled):
    return Files(pulled.folder / "data", pulled)


def here(files):
    found = (path for path in files.root.rglob("*.*") if path.is_file())
    return {path.relative_to(files.root).as_posix() for path in found}


@pytest.mark.parametrize("chunk", [1, 2, 4096])
def test_names_and_sizes_are_those_of_the_folder_and_nothing_is_fetched(
    files, tmp_path, monkeypatch, chunk
):
    monkeypatch.setattr(data_files, "CHUNK", chunk)
    assert list(files) == list(Files(tmp_path / "other/data"))
    assert not files.root.exists()
    files.fetch(["b/c/3.png", "a.b/1.png"])
    assert here(files) == {"b/c/3.png", "a.b/1.png"}
    assert files.path("a/1.png").read_bytes() == CONTENT["a/1.png"]
    files.fetch(["no such file"])
    assert len(here(files)) == 3


@pytest.mark.parametrize("chunk", [1, 4096])
def test_the_digests_of_some_files_are_those_of_their_contents(files, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(data_files, "CHUNK", chunk)
    some = ["b/c/3.png", ".x.png", "a/1.png"]
    expected = {name: hashlib.sha256(CONTENT[name]).hexdigest() for name in some}
    assert files.digests(some) == expected
    assert Files(tmp_path / "other/data").digests(some) == expected
    assert not files.root.exists()


@pytest.mark.parametrize(
    ("names", "have"),
    [
        (["train/cat/1.png"], True),
        (["Test/cat/deep/1.png", "x.png"], True),
        (["train/1.png", "cat/deep/1.png"], False),
        (["train/.hidden/1.png", "train/2.png"], False),
    ],
)
def test_folders_of_splits_are_seen_in_the_names_as_on_disk(tmp_path, remote, names, have):
    publish(tmp_path / "other", remote, dict.fromkeys(names, b"1"))
    pulled = Store(tmp_path / "store", remote).find("pull", MADE.key)
    assert Files(tmp_path / "other/data").have_split_folders() is have
    assert Files(pulled.folder / "data", pulled).have_split_folders() is have


def test_several_that_need_a_file_fetch_it_once(files, monkeypatch):
    fetched, receive = [], exchange.receive

    def counted(remote, wanted, *places):
        fetched.extend(file["path"] for file in wanted)
        time.sleep(0.05)
        return receive(remote, wanted, *places)

    monkeypatch.setattr(exchange, "receive", counted)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: Files(files.root, files.pulled).fetch(NAMES), range(8)))
    assert sorted(fetched) == sorted(f"data/{name}" for name in NAMES)


def test_a_file_that_has_changed_in_the_remote_store_is_refused(files, store, tmp_path):
    [damaged] = [
        path for path in (tmp_path / "remote/files").rglob("*")
        if path.is_file() and path.read_bytes() == CONTENT["a/1.png"]
    ]  # fmt: skip
    damaged.write_bytes(b"x" * len(CONTENT["a/1.png"]))
    with pytest.raises(DamagedArtifactError, match=r"data/a/1\.png (has changed|is gone)"):
        files.fetch(["a/1.png"])
    assert not store.folder("pull", MADE.key).exists()
    assert exchange.find(store.remote, "pull", MADE.key) is None


def test_a_remote_store_that_is_away_is_no_fault_of_the_data(tmp_path, monkeypatch, remote):
    folder = tmp_path / "other"
    write_parquet(folder / "data/train.parquet", [png(1), png(2)], ["a", "b"])
    publish(folder, remote, {}, format="parquet")
    source = open_raw_dataset(
        Data(path="data"), Store(tmp_path / "store", remote).find("pull", MADE.key)
    )
    [unit], read = source.units(), Remote.download
    source.files.path("train.parquet").unlink()

    def away(*_):
        raise RemoteError("The remote store does not answer.")

    monkeypatch.setattr(Remote, "download", away)
    for call in (source.units, lambda: list(source.read(unit))):
        with pytest.raises(RemoteError):
            call()
    monkeypatch.setattr(Remote, "download", read)
    assert len(list(source.read(unit))) == 2


@pytest.mark.parametrize("form", ["folders", "table"])
def test_another_machine_reads_a_unit_with_its_files_alone(tmp_path, monkeypatch, remote, form):
    images = {f"{'ab'[number % 2]}/{number:02}.png": png(number) for number in range(20)}
    rows = ["path,label", *(f"{name},{number % 3}" for number, name in enumerate(images))]
    publish(tmp_path / "other", remote, images | {"all.csv": "\n".join(rows).encode()}, format=form)
    project = Project(tmp_path)
    monkeypatch.setenv("RETRAIN_STORE", str(tmp_path / "store"))
    store = Store(project.store, remote)
    source = open_raw_dataset(Data(path="data"), store.find("pull", MADE.key))
    [unit] = source.units()
    expected = list(source.read(unit))
    packed = machine.pack((source, unit, source.paths_of(unit)), project)
    monkeypatch.setenv("RETRAIN_STORE", str(tmp_path / "machine"))
    there, unit, paths = machine.unpack(packed)
    machine.bring(Store(tmp_path / "machine", remote), paths)
    assert there.root.is_relative_to(tmp_path / "machine")
    assert list(there.read(unit)) == expected
    assert here(there.files) == {*images, *(["all.csv"] if form == "table" else [])}


def test_what_came_first_leaves_room_and_is_fetched_again(tmp_path, remote):
    images = {f"a/{number}.png": png(number) for number in range(10)}
    publish(tmp_path / "other", remote, images, format="folders")
    pulled = Store(tmp_path / "store", remote).find("pull", MADE.key)
    source = open_raw_dataset(Data(path="data"), pulled)
    [unit] = source.units()
    source.files.fetch(list(images)[:4])
    for number in range(4):
        os.utime(pulled.folder / f"data/a/{number}.png", (0, 1000 + number))
    reading = source.read(unit)
    # More than half, but these have just come.
    assert here(source.files) == {f"a/{number}.png" for number in range(4, 10)}
    assert [raw.data for raw in reading] == [*images.values()]


def test_half_of_the_data_or_of_the_free_disk_stays(tmp_path, monkeypatch):
    write_files(tmp_path, {f"{number}": bytes(100) for number in range(10)})
    for number in range(10):
        os.utime(tmp_path / f"{number}", (0, 1000 - number))
    room.make_room(tmp_path, 2000)
    assert len(list(tmp_path.iterdir())) == 10
    room.make_room(tmp_path, 1000)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2", "3", "4"}
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    room.make_room(tmp_path, 1000)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
