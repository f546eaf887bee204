"""Two machines with addresses and disks of their own train as one."""

import subprocess

import pytest

from tests.cluster.conftest import BUCKET

pytestmark = pytest.mark.cluster

EPOCH = "  train  epoch"  # what a run tells in the middle of a training


def check(document, weights):
    """Checks that a run has trained these weights, and promoted them."""
    assert document["training"]["weights"] == document["model"]["digest"] == weights
    assert document["state"] == "Promoted"


def test_machines_that_see_one_folder_train_as_one_machine(cluster, weights):
    check(cluster.clone("shared", shared=True).train().document(), weights)


def test_machines_that_do_not_see_the_store_take_the_images_from_the_mirror(cluster, weights):
    remote = {"RETRAIN_STORE_REMOTE": f"s3://{BUCKET}/apart"}
    run = cluster.clone("apart", **remote, **cluster.aws).train()
    document = run.document()
    check(document, weights)
    assert EPOCH in run.said
    # The other machine, which does not see the clone, has taken part, and fetched what it opens.
    assert subprocess.call(cluster.other.command(["test", "-e", "/tmp/apart"])) == 1
    keys = {step["step"]: step["key"] for step in document["steps"]}
    store = cluster.other.disk / "retrain-0" / "store"
    assert (store / "preprocess" / keys["preprocess"] / "manifest.json").exists()
    assert not (store / "pull").exists()
    assert not [*(store / "scratch/train").iterdir()]


def test_a_machine_that_sees_no_store_is_named_before_the_training(cluster):
    run = cluster.clone("blind").train()
    assert run.process.wait() == 2
    [line] = [line for line in run.said.splitlines() if line.startswith("retrain: ")]
    assert f"other ({cluster.other.address})" in line
    assert "RETRAIN_STORE" in line


def test_a_machine_that_is_lost_in_an_epoch_and_comes_back(cluster, weights):
    run = cluster.clone("lost", shared=True).train()
    run.wait_for(EPOCH)
    cluster.turn_off_other()
    cluster.turn_on_other()
    check(run.document(), weights)
