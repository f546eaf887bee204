"""The mirror behind a store: S3 (moto's server) and a shared folder."""

import sys
from dataclasses import replace

import pytest

from retrain import store_mirror
from retrain.errors import MirrorError, UsageError
from retrain.outputs import MANIFEST
from retrain.store import Store, verify
from tests import running
from tests.retrain.test_store import DATA, STEP, WORKLOAD


@pytest.fixture(autouse=True)
def new_process():
    """What a process remembers of the mirror."""
    yield
    store_mirror._files.cache_clear()
    store_mirror._away.clear()


@pytest.fixture(params=["s3", "file"])
def either(request, tmp_path):
    if request.param == "file":
        return store_mirror.Mirror(f"file://{tmp_path}/remote")
    return store_mirror.Mirror(request.getfixturevalue("bucket"))


def make(store, context, step=STEP):
    return running.make(store, step, WORKLOAD, [DATA], context)


def files_of(artifact):
    return {p: p.read_bytes() for p in sorted(artifact.folder.rglob("*.*"))}.values()


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
    (made.folder / "lr.txt").write_bytes(b"")  # what is damaged here is taken again
    assert make(store, context)[1]
    assert [*files_of(made)] == [*files_of(found)]


def test_what_is_damaged_here_stays_where_the_mirror_lacks_it(context, tmp_path):
    """As long as nothing whole takes its place."""
    mirror = store_mirror.Mirror(f"file://{tmp_path}/remote")
    store = Store(tmp_path / "one")
    made, _ = make(store, context)
    (made.folder / "lr.txt").write_bytes(b"")
    with store.lock("toy", made.key):
        assert Store(tmp_path / "one", mirror).obtain("toy", made.key) is None
    assert (made.folder / "lr.txt").read_bytes() == b""
    assert [*store.leftovers()] == []


@pytest.mark.parametrize("harm", ["changed", "gone", "manifest"])
def test_what_is_damaged_in_the_mirror_is_made_again_and_sent_anew(either, context, tmp_path, harm):
    made, _ = make(Store(tmp_path / "one", either), context)
    files = store_mirror._files(either.url)
    path = f"{either.url}/toy/{made.key}/{MANIFEST if harm == 'manifest' else 'report/time.txt'}"
    if harm == "gone":
        files.rm_file(path)
    else:
        files.pipe_file(path, b"\0" * files.size(path))
    again, cached = make(Store(tmp_path / "other", either), replace(context, run="run-2"))
    assert not cached
    assert again.digest == made.digest
    found, cached = make(Store(tmp_path / "third", either), replace(context, run="run-3"))
    assert cached
    assert found.provenance["run"] == "run-2"


def test_a_mirror_that_is_away_is_told_once_and_the_next_run_sends(
    bucket, context, tmp_path, monkeypatch, caplog
):
    store = Store(tmp_path / "one", store_mirror.Mirror(bucket))
    with monkeypatch.context() as offline:
        offline.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        made, _ = make(store, context)
        make(store, context, replace(STEP, name="other"))
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
    make(Store(tmp_path / "one", store_mirror.Mirror("s3://no-such-bucket-of-ours")), context)
    assert "no-such-bucket-of-ours" in caplog.text


def test_a_package_that_is_not_installed_is_named(context, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match="gcsfs"):
        make(Store(tmp_path / "one", store_mirror.Mirror("gs://bucket/prefix")), context)
