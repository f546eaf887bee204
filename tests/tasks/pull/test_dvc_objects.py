"""Data under DVC that the machines of a cluster send to the remote store: an S3 server has both."""

import hashlib
import json
import secrets
import shutil
import subprocess
import sys

import boto3
import pytest

from retrain import exchange
from retrain.caching import is_transient
from retrain.execute import get_or_run
from retrain.outputs import plan
from retrain.project import Project
from retrain.remote import Remote
from retrain.store import RunContext, Store
from retrain.verify import Verifier
from retrain.workload import Data, Model, Workload
from tasks.data.raw_dataset import open_raw_dataset
from tasks.pull import dvc_source
from tasks.pull.step import data_version, pull
from tests.tasks import test_cluster_steps as cluster_steps
from tests.tasks.pull.pulling import dvc
from tests.tasks.toy_data import png, write_files, write_parquet

DATA = {f"digits/{'ab'[number % 2]}/{number:03}.png": png(number) for number in range(40)}
LISTED = DATA | {
    "digits/labels.csv": "".join(
        ["path,label\n", *(f"{name.removeprefix('digits/')},{number % 3}\n"
                           for number, name in enumerate(DATA))]
    ).encode(),
    "digits/notes/read me.txt": b"nothing",
}  # fmt: skip


@pytest.fixture(scope="module")
def s3(s3_server):
    """The environment for an S3 server, and a bucket for DVC."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret"}.items():
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_ENDPOINT_URL", s3_server)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        bucket = f"dvc-{secrets.token_hex(4)}"
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield bucket


@pytest.fixture(scope="module")
def template(tmp_path_factory, s3):
    """A project whose data is in DVC's remote, with all kinds of data, and an archive."""
    root = tmp_path_factory.mktemp("template")
    (root / "params.yaml").touch()
    write_files(root / "data", LISTED)
    write_files(root / "data/folders", DATA)
    for number in range(3):
        images = [png(100 * number + row) for row in range(7)]
        write_parquet(root / f"data/parquet/{number}.parquet", images, [*"abcabca"])
    shutil.make_archive(str(root / "data/packed/all"), "zip", root / "data/folders")
    dvc(root, "init", "-q", "--no-scm")
    dvc(root, "remote", "add", "-q", "-d", "team", f"s3://{s3}/data")
    dvc(root, "add", "-q", "data")
    dvc(root, "push", "-q")
    return root


@pytest.fixture
def project(template, tmp_path, bucket, monkeypatch):
    """A fresh clone: nothing in DVC's cache, and no `data/`; a new remote store."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("RETRAIN_STORE_REMOTE", bucket)
    monkeypatch.setattr(dvc_source, "share_only_the_remote", lambda: True)
    root = tmp_path / "clone"
    shutil.copytree(template, root, ignore=shutil.ignore_patterns("data", "cache"))
    return Project(root)


def made(project, path, store="store", **data):
    """The output of `pull` in a store, made by a run."""
    workload = Workload(name="toy", data=Data(path=path, **data), model=Model(family="vit"))
    version = data_version(workload.data, project)
    planned = plan(pull, workload, [version])
    remote = project.store_remote
    store = Store(project.root / store, Remote(remote) if remote else None)
    context, check = RunContext("run", project), Verifier(store).check
    with store.lock("pull", planned.key):
        return get_or_run(store, pull, planned, workload, [version], context, check)[0]


def here(artifact):
    """The files of an output that are on this machine."""
    return {
        path.relative_to(artifact.folder / "data").as_posix(): path.read_bytes()
        for path in (artifact.folder / "data").rglob("*")
        if path.is_file()
    }


def as_on_one_machine(project, path, monkeypatch, **data):
    """The output where there is no remote store, in a store of its own."""
    with monkeypatch.context() as patch:
        patch.delenv("RETRAIN_STORE_REMOTE")
        return made(project, path, "own", **data)


def key_of(content):
    md5 = hashlib.md5(content).hexdigest()
    return f"data/files/md5/{md5[:2]}/{md5[2:]}"


@pytest.mark.parametrize(
    ("path", "form", "kept"),
    [
        ("data/folders", "folders", set()),
        ("data/digits", "table", {"labels.csv"}),
        ("data/parquet", "parquet", set()),
        ("data", "parquet", {"digits/labels.csv"}),
    ],
)
def test_the_output_is_that_of_one_machine_and_only_listings_are_here(
    project, monkeypatch, path, form, kept
):
    sent = made(project, path)
    assert sent.facts == {"format": form}
    assert here(sent).keys() == kept
    assert not list((project.root / ".dvc/cache/files").rglob("*.png"))
    manifest = json.loads((sent.folder / "manifest.json").read_text())
    expected = as_on_one_machine(project, path, monkeypatch)
    assert sent.digest == expected.digest
    assert manifest["files"] == json.loads((expected.folder / "manifest.json").read_text())["files"]
    store = Store(project.root / "other", Remote(project.store_remote))
    assert here(sent).items() <= here(expected).items()
    assert store.find("pull", sent.key)
    store.fetch(sent)
    assert {
        name: (store.folder("pull", sent.key) / "data" / name).read_bytes()
        for name in here(expected)
    } == here(expected)


@pytest.mark.parametrize("path", ["data/folders", "data/digits", "data/parquet"])
def test_units_are_those_of_files_that_are_here(project, monkeypatch, path):
    config = Data(path=path)
    source = open_raw_dataset(config, made(project, path))
    before = here(made(project, path)).keys()
    expected = open_raw_dataset(config, as_on_one_machine(project, path, monkeypatch))
    units = source.units()
    assert [list(unit.pieces) for unit in units] == [list(unit.pieces) for unit in expected.units()]
    assert list(source.labels()) == list(expected.labels())
    if path in ("data/folders", "data/digits"):  # the others are opened to know how many they hold
        assert here(made(project, path)).keys() == before
    raws = [raw for each in expected.units() for raw in expected.read(each)]
    assert [raw for unit in units for raw in source.read(unit)] == raws


@pytest.fixture
def client(s3):
    """Of the S3 server; DVC's remote is whole again after the test."""
    client = boto3.client("s3")
    yield client
    for content in DATA.values():
        client.put_object(Bucket=s3, Key=key_of(content), Body=content)


def test_a_damaged_object_is_named_and_the_rest_is_not_sent_again(project, s3, client):
    key = key_of(DATA["digits/a/020.png"])
    client.put_object(Bucket=s3, Key=key, Body=b"something else")
    name = key.removeprefix("data/")
    fault = rf"'team' \(s3://{s3}/data\) has a damaged object for a/020.png: delete {name} there"
    with pytest.raises(OSError, match=fault) as error:
        made(project, "data/folders/digits")
    assert is_transient(error.value)
    client.put_object(Bucket=s3, Key=key, Body=DATA["digits/a/020.png"])
    client.delete_object(Bucket=s3, Key=key_of(DATA["digits/a/000.png"]))  # of a task that ended
    sent = made(project, "data/folders/digits")
    manifest = json.loads((sent.folder / "manifest.json").read_text())
    assert [file["sha256"] for file in manifest["files"]] == [
        hashlib.sha256(DATA[name]).hexdigest() for name in sorted(DATA)
    ]


def test_an_object_that_is_missing_is_named_with_its_file(project, s3, client):
    client.delete_object(Bucket=s3, Key=key_of(DATA["digits/a/020.png"]))
    with pytest.raises(ConnectionError, match=r"'team' .* does not give a/020\.png\. Is it there"):
        made(project, "data/folders/digits")


PROGRAM = """
import sys
from pathlib import Path
from retrain.project import Project
from tasks.pull import dvc_source
from tests.tasks.pull.test_dvc_objects import made
dvc_source.share_only_the_remote = lambda: True
made(Project(Path(sys.argv[1])), "data/folders")
"""


def test_a_pull_that_was_killed_goes_on(project, s3, client, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(project.root)])
    records = []
    while len(records) < 3:
        assert process.poll() is None
        records = list(project.root.glob("store/scratch/pull/*/sent/0*.json"))
    process.kill()
    process.wait()
    names = sorted(DATA)  # a task for each
    first, *others = (names[int(record.stem)] for record in records)
    lost = exchange.file_path(hashlib.sha256(DATA[first]).hexdigest())
    Remote(project.store_remote).delete([lost])  # as the last garbage collection would do
    for name in others:
        client.delete_object(Bucket=s3, Key=key_of(DATA[name]))
    whole = made(project, "data/folders")
    for name in names:
        client.put_object(Bucket=s3, Key=key_of(DATA[name]), Body=DATA[name])
    assert whole.digest == as_on_one_machine(project, "data/folders", monkeypatch).digest
    assert Remote(project.store_remote).size(lost) == len(DATA[first])


@pytest.mark.parametrize("path", ["data/packed", "data/digits/notes", "data/digits/a/000.png"])
def test_an_archive_and_single_files_are_fetched_here(project, monkeypatch, path):
    found = made(project, path, format="folders")
    expected = as_on_one_machine(project, path, monkeypatch, format="folders")
    assert here(found) == here(expected)
    assert found.remote is None


def test_objects_in_the_cache_of_this_machine_are_not_fetched(project):
    dvc(project.root, "fetch", "-q", "data/digits/a")
    assert made(project, "data/digits/a", format="folders").remote is None


@pytest.mark.slow
@pytest.mark.parametrize("path", ["data/folders/digits", "data/digits", "data/parquet"])
def test_two_nodes_send_and_read_the_data_and_the_driver_has_none(nodes, project, tmp_path, path):
    environment, _ = nodes
    arguments, own = (path, json.dumps(cluster_steps.VIT), "preprocess"), tmp_path / "own"
    shutil.copytree(project.root, own)
    for root in (project.root, own):
        shutil.copy(cluster_steps.ROOT / "params.yaml", root)
    if path == "data/folders/digits":
        with cluster_steps.driving(project.root, environment, *arguments) as first:
            sent = "store/scratch/pull/*/sent/*.sent"
            cluster_steps.wait_for(first, lambda: len([*project.root.glob(sent)]) > 2)
    apart = cluster_steps.run(project.root, environment, *arguments)
    assert apart == cluster_steps.run(own, {"RETRAIN_STORE_REMOTE": ""}, *arguments)
    [data] = own.glob("store/pull/*/data")
    images = {file.read_bytes() for file in data.rglob("*") if file.suffix in (".png", ".parquet")}
    assert not images & {file.read_bytes() for file in project.root.rglob("*") if file.is_file()}
    for name in ("head", "other"):
        assert [*(tmp_path / name / "pull").rglob("*.p*")]
