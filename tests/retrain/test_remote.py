"""The store behind an object store: S3 (moto's server) and a shared folder."""

import json
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from select import select

import pytest

from retrain import exchange, gc, remote as remotes, remote_gc, roots
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.execute import get_or_run
from retrain.outputs import MANIFEST, digest_of_output, plan
from retrain.project import Project
from retrain.remote import Remote
from retrain.step import Workspace
from retrain.store import Store
from retrain.verify import Verifier
from retrain.workload import Train
from tests.retrain.test_store import DATA, STEP, WORKLOAD, with_lr

TRAINED = ("a/model.bin", "b/shard.bin", "report/log.txt")


def write_files(definition: Train, data, workspace: Workspace) -> dict:
    for number, name in enumerate(TRAINED):
        file = workspace.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes([number]) * 70_000)
    return {"lr": definition.lr}


FILES = replace(STEP, function=write_files)


@pytest.fixture(params=["s3", "file"])
def remote(request, tmp_path, monkeypatch):
    monkeypatch.setattr(remotes, "_away", {})
    if request.param == "file":
        return Remote(f"file://{tmp_path}/remote")
    return Remote(request.getfixturevalue("bucket"))


def make(store, context, step=FILES, workload=WORKLOAD):
    planned = plan(step, workload, [DATA])
    with store.making(step.name, planned.key):
        return get_or_run(store, step, planned, workload, [DATA], context, Verifier(store).check)


def files_of(artifact):
    return sorted(p.relative_to(artifact.folder).as_posix() for p in artifact.folder.rglob("*.*"))


def test_what_one_machine_made_is_found_by_another_and_fetched_lazily(remote, context, tmp_path):
    made, _ = make(Store(tmp_path / "one", remote), context)
    other = Store(tmp_path / "other", remote)
    found, cached = make(other, replace(context, run="run-2"))
    assert cached
    assert found.digest == made.digest
    assert found.provenance["run"] == "run-1"
    assert files_of(found) == ["manifest.json"]
    assert other.fetch(found, lambda path: path.startswith("a/")) == found.folder
    assert files_of(found) == ["a/model.bin", "manifest.json"]
    Verifier(other).check([found])
    other.fetch(found)
    assert files_of(found) == files_of(made)
    assert (found.folder / "b/shard.bin").read_bytes() == (made.folder / "b/shard.bin").read_bytes()
    assert not list(other.root.glob("*/.*.partial"))
    # Without the remote, what is here counts.
    assert Store(other.root).find("toy", found.key) == found
    (found.folder / "b/shard.bin").unlink()
    assert Store(other.root).damage("toy", found.key) == "b/shard.bin is gone"


@pytest.mark.parametrize("changed", [False, True])
def test_what_another_output_has_here_is_not_fetched(
    remote, context, tmp_path, monkeypatch, changed
):
    here, there = Store(tmp_path / "here", remote), Store(tmp_path / "there", remote)
    first, _ = make(here, context)
    if changed:
        (first.folder / "b/shard.bin").write_bytes(bytes(70_000))
    made, _ = make(there, context, workload=with_lr(0.5))
    downloaded, download = [], Remote.download

    def noted(self, path, *others):
        downloaded.append(path)
        return download(self, path, *others)

    monkeypatch.setattr(Remote, "download", noted)
    found, cached = make(here, context, workload=with_lr(0.5))
    assert cached
    here.fetch(found)
    assert len(downloaded) == changed
    assert files_of(found) == files_of(made)
    Verifier(here).check([found])
    assert (found.folder / "a/model.bin").samefile(first.folder / "a/model.bin")


def test_content_is_sent_once(remote, context, tmp_path):
    store = Store(tmp_path / "one", remote)
    make(store, context)
    before = {path: time for path, _, time in remote.listed("files")}
    assert len(before) == len(TRAINED)
    again = replace(FILES, name="again")
    time.sleep(1.1)  # S3 tells the time in seconds
    planned = plan(FILES, WORKLOAD, [DATA])
    with store.making("again", planned.key):
        get_or_run(store, again, planned, WORKLOAD, [DATA], context, Verifier(store).check)
    assert {path: time for path, _, time in remote.listed("files")} == before
    assert len(list(remote.listed("artifacts"))) == 2


def write_and_send(remote: Remote, *, loses: bool = False):
    """The step, which sends its shard and keeps no copy; the remote may lose it."""

    def send_files(definition: Train, data, workspace: Workspace) -> dict:
        facts = write_files(definition, data, workspace)
        entry = exchange.send_file(remote, workspace.folder / TRAINED[1])
        (workspace.folder / TRAINED[1]).unlink()
        workspace.sent.append({"path": TRAINED[1]} | entry)
        if loses:
            remote.delete([exchange.file_path(entry["sha256"])])
        return facts

    return replace(FILES, function=send_files)


def test_an_output_with_files_that_only_the_remote_has_is_the_same(remote, context, tmp_path):
    whole, _ = make(Store(tmp_path / "whole"), context)
    store = Store(tmp_path / "store", remote)
    made, _ = make(store, context, write_and_send(remote))
    assert made.digest == whole.digest
    assert files_of(made) == ["a/model.bin", "manifest.json", "report/log.txt"]
    manifests = (json.loads((each.folder / MANIFEST).read_text()) for each in (made, whole))
    assert next(manifests)["files"] == next(manifests)["files"]
    Verifier(store).check([made])
    assert make(store, context, write_and_send(remote))[1]
    store.fetch(made)
    assert files_of(made) == files_of(whole)
    other, cached = make(Store(tmp_path / "other", remote), context)
    assert (cached, other.digest) == (True, whole.digest)


def test_an_output_that_the_remote_has_lost_a_part_of_is_not_published(remote, context, tmp_path):
    store = Store(tmp_path / "store", remote)
    with pytest.raises(RemoteError, match=r"b/shard\.bin is gone in the remote store"):
        make(store, context, write_and_send(remote, loses=True))
    assert not [*store.entries()]
    assert not make(store, context, write_and_send(remote))[1]


def test_a_damaged_object_is_refused_and_the_artifact_is_made_again(remote, context, tmp_path):
    make(Store(tmp_path / "one", remote), context)
    [path] = [path for path, size, _ in remote.listed("files") if size][:1]
    remote.write(path, b"\0" * 70_001)
    other = Store(tmp_path / "other", remote)
    found, _ = make(other, context)
    with pytest.raises(DamagedArtifactError, match="has changed in the remote store"):
        other.fetch(found)
    made, cached = make(other, replace(context, run="run-2"))
    assert not cached
    third = Store(tmp_path / "third", remote)
    assert files_of(replace(made, folder=third.fetch(made))) == files_of(made)


@pytest.mark.parametrize("name", ["../../../outside", "/tmp/outside"])
def test_a_manifest_that_leads_out_of_its_folder_is_none(remote, context, tmp_path, name):
    made, _ = make(Store(tmp_path / "one", remote), context)
    place = exchange.manifest_path("toy", made.key)
    manifest = json.loads(remote.read(place))
    manifest["files"][0]["path"] = name
    manifest["digest"] = digest_of_output(manifest["facts"], manifest["files"])
    remote.write(place, json.dumps(manifest).encode())
    assert Store(tmp_path / "other", remote).find("toy", made.key) is None


def test_offline_it_is_made_here_and_sent_later(bucket, context, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(remotes, "_away", {})
    remotes._client.cache_clear()
    with monkeypatch.context() as offline:
        offline.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        store = Store(tmp_path / "one", Remote(bucket))
        made, _ = make(store, context)
        assert store.find("toy", made.key).remote is None
    remotes._client.cache_clear()
    remotes._away.clear()
    assert list(Remote(bucket).listed("artifacts")) == []
    make(store, context)
    assert store.find("toy", made.key).remote == bucket
    assert Store(tmp_path / "two", Remote(bucket)).find("toy", made.key) == replace(
        made, folder=tmp_path / "two" / "toy" / made.key
    )


def test_two_machines_that_want_the_same_do_the_work_once(remote, context, tmp_path):
    made = []

    def slow(definition: Train, data, workspace: Workspace) -> dict:
        made.append(workspace.folder)
        time.sleep(1)
        return write_files(definition, data, workspace)

    def work(name):
        return make(Store(tmp_path / name, remote), context, replace(FILES, function=slow))

    with ThreadPoolExecutor(2) as pool:
        (one, _), (two, _) = pool.map(work, ("one", "two"))
    assert len(made) == 1
    assert one.digest == two.digest


@pytest.mark.slow
def test_a_machine_that_is_killed_leaves_its_lease_to_another(remote, tmp_path):
    program = textwrap.dedent(
        f"""
        import sys, time
        from retrain import remote
        remote.BEAT_SECONDS, remote.TAKEOVER_SECONDS, remote.POLL_SECONDS = 0.5, 3.0, 0.2
        with remote.Remote({remote.url!r}).lease("toy/key", "waits"):
            print("has it", flush=True)
            sys.stdin.read()
        """
    )
    with ExitStack() as stack:
        holder = stack.enter_context(started(program))
        assert holder.stdout.readline() == "has it\n"
        other = stack.enter_context(started(program))
        time.sleep(5)  # longer than a takeover takes: the heartbeat keeps it
        assert select([other.stdout], [], [], 0)[0] == []
        holder.kill()
        assert select([other.stdout], [], [], 20)[0]
        assert other.stdout.readline() == "has it\n"
        other.stdin.close()  # it ends, and leaves no lease
        assert other.wait() == 0
    if remote.url.startswith("s3"):
        assert list(remote.listed("leases")) == []


@contextmanager
def started(program):
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_gc_keeps_in_the_remote_what_a_project_needs_or_was_written_today(
    remote, context, tmp_path, monkeypatch
):
    project = Project(tmp_path / "project")
    project.root.mkdir()
    project.params.write_text(f"store: {{remote: '{remote.url}'}}\nworkloads: {{}}\n")
    store = Store.of(project)
    needed, _ = make(store, context)
    other, _ = make(store, context, replace(FILES, name="other"))
    remote.write("files/00/" + "0" * 64, b"of nobody")
    remote.write("leases/toy/old", b"{}")
    roots.add(project, [("toy", needed.key)])
    assert remote_kinds(gc.collect(project, remote=True)) == []
    monkeypatch.setattr(remote_gc, "DAY", 0.0)
    monkeypatch.setattr(gc, "_taken", lambda project, keep: frozenset([("toy", needed.key)]))
    time.sleep(1.1)  # S3 tells the time in seconds
    leases = ["leases/toy/old"] if remote.url.startswith("s3") else []
    expected = [f"other {other.key}", "1 files", *leases]
    assert remote_kinds(gc.collect(project, remote=True)) == expected
    assert remote_kinds(gc.collect(project, remote=True)) == []
    third = Store(tmp_path / "third", remote)
    assert third.find("other", other.key) is None
    assert files_of(replace(needed, folder=third.fetch(needed))) == files_of(needed)


def remote_kinds(garbage):
    return [piece.name for piece in garbage if piece.kind == "remote"]
