"""Two machines with addresses and disks of their own train as one."""

import subprocess

import pytest

pytestmark = pytest.mark.cluster


def test_machines_that_share_only_an_object_store_train_as_one_machine(cluster, weights):
    clone = cluster.clone("apart")
    document = clone.retrain("train", "vit", "--as", "apart")
    cluster.check(clone, document, "apart", weights)
    # The other machine, which does not see the clone, has taken part, and fetched what it opens.
    assert subprocess.call(cluster.other.command(["test", "-e", clone.folder])) == 1
    keys = {step["step"]: step["key"] for step in document["steps"]}
    store = cluster.other.disk / "retrain-0" / "store"
    images = store / "preprocess" / keys["preprocess"]
    assert {path.name for path in images.iterdir() if path.is_dir()} >= {"train", "val"}
    assert not (store / "pull" / keys["pull"] / "data").exists()
    assert not cluster.servers.objects("apart/scratch/")
    assert not cluster.servers.objects("apart/leases/")


def test_machines_that_see_one_folder_train_as_one_machine(cluster, weights):
    clone = cluster.clone("shared", shared=True, remote=False)
    document = clone.retrain("train", "vit", "--as", "shared")
    cluster.check(clone, document, "shared", weights)


def test_a_machine_that_sees_no_store_is_named_before_the_training(cluster):
    run = cluster.clone("blind", remote=False).start("train", "vit", "--as", "blind")
    assert run.process.wait() == 2
    [line] = [line for line in run.said.splitlines() if line.startswith("retrain: ")]
    assert f"other ({cluster.other.address})" in line
    assert "store.remote" in line
