"""The mirror behind a store: S3 (moto's server) and a shared folder."""

import sys
from dataclasses import replace

import pytest

from retrain import store_mirror
from retrain.errors import MirrorError, UsageError
from retrain.outputs import MANIFEST
from retrain.step import Workspace
from retrain.store import Store, verify
from retrain.store_mirror import Mirror
from retrain.workload import Train
from tests import running
from tests.retrain.test_store import DATA, STEP, WORKLOAD

TRAINED = ("a/model.bin", "b/shard.bin", "report/log.txt")


def write_files(definition: Train, data, workspace: Workspace) -> dict:
    for number, name in enumerate(TRAINED):
        file = workspace.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes([number]) * 70_000)
    return {"lr": definition.lr}


FILES = replace(STEP, function=write_files)


@pytest.fixture(autouse=True)
def new_process():
    """What a process remembers of the mirror."""
    yield
    store_mirror._files.cache_clear()
    store_mirror._away.clear()


@pytest.fixture(params=["s3", "file"])
def either(request, tmp_path):
    if request.param == "file":
        return Mirror(f"file://{tmp_path}/remote")
    return Mirror(request.getfixturevalue("bucket"))


@pytest.fixture
def mirror(tmp_path):
    return Mirror(f"file://{tmp_path}/remote")


def make(store, context, step=FILES):
    return running.make(store, step, WORKLOAD, [DATA], context)


def files_of(artifact):
    return {p: p.read_bytes() for p in sorted(artifact.folder.rglob("*.*"))}.values()


def there(mirror, artifact, name):
    """A file of an output in the mirror: what opens files there, and its path."""
    return store_mirror._files(mirror.url), f"{mirror.url}/{artifact.step}/{artifact.key}/{name}"


def test_what_one_machine_made_another_takes_whole(either, context, tmp_path):
    store, other = Store(tmp_path / "one", either), Store(tmp_path / "other", either)
    made, _ = make(store, context)
    assert other.find("toy", made.key) is None
    found, cached = make(other, replace(context, run="run-2"))
    assert cached
    assert found == replace(made, folder=found.folder)
    assert [*files_of(found)] == [*files_of(made)]
    assert verify(other) == []
    assert not list(other.root.glob("*/.*.partial"))
    (made.folder / TRAINED[0]).write_bytes(b"short")  # what is damaged here is taken again
    assert make(store, context)[1]
    assert [*files_of(made)] == [*files_of(found)]


def test_what_is_damaged_here_stays_where_the_mirror_lacks_it(mirror, context, tmp_path):
    """As long as nothing whole takes its place."""
    store = Store(tmp_path / "one")
    made, _ = make(store, context)
    (made.folder / TRAINED[0]).write_bytes(b"short")
    with store.lock("toy", made.key):
        assert Store(tmp_path / "one", mirror).obtain("toy", made.key) is None
    assert (made.folder / TRAINED[0]).read_bytes() == b"short"
    assert [*store.leftovers()] == []


@pytest.mark.parametrize("harm", ["changed", "gone", "manifest"])
def test_what_is_damaged_in_the_mirror_is_made_again_and_sent_anew(either, context, tmp_path, harm):
    made, _ = make(Store(tmp_path / "one", either), context)
    files, path = there(either, made, MANIFEST if harm == "manifest" else TRAINED[1])
    if harm == "gone":
        files.rm_file(path)
    else:
        files.pipe_file(path, b"\0" * 70_000)
    again, cached = make(Store(tmp_path / "other", either), replace(context, run="run-2"))
    assert not cached
    assert again.digest == made.digest
    found, cached = make(Store(tmp_path / "third", either), replace(context, run="run-3"))
    assert cached
    assert found.provenance["run"] == "run-2"


def test_an_output_that_was_half_sent_is_sent_by_the_next_run(mirror, context, tmp_path):
    store = Store(tmp_path / "one", mirror)
    made, _ = make(store, context)
    files, path = there(mirror, made, MANIFEST)
    files.rm_file(path)
    assert not mirror.has("toy", made.key)
    assert make(store, context)[1]
    assert mirror.has("toy", made.key)


def test_a_mirror_that_is_away_is_told_once_and_the_next_run_sends(
    bucket, context, tmp_path, monkeypatch, caplog
):
    store = Store(tmp_path / "one", Mirror(bucket))
    with monkeypatch.context() as offline:
        offline.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        made, _ = make(store, context)
        make(store, context, replace(FILES, name="other"))
        with pytest.raises(MirrorError, match="does not answer"):
            store.mirror.has("toy", made.key)
    assert caplog.text.count("does not answer") == 1
    assert "This run goes on with what is here" in caplog.text
    store_mirror._files.cache_clear()
    store_mirror._away.clear()
    assert not store.mirror.has("toy", made.key)
    make(store, context)
    assert store.mirror.has("toy", made.key)


def test_a_bucket_that_is_not_there_is_told(bucket, context, tmp_path, caplog):
    make(Store(tmp_path / "one", Mirror("s3://no-such-bucket-of-ours/prefix")), context)
    assert "no-such-bucket-of-ours" in caplog.text


def test_a_package_that_is_not_installed_is_named(context, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match="gcsfs"):
        make(Store(tmp_path / "one", Mirror("gs://bucket/prefix")), context)
