"""Two machines with addresses and disks of their own train as one, where they see one store."""

import subprocess

import pytest

from tests.cluster.hosts import SHARED

pytestmark = pytest.mark.cluster

EPOCH = "  train  epoch"  # what a run tells in the middle of a training


def check(document, weights):
    """Checks that a run has trained these weights, and promoted them."""
    assert document["training"]["weights"] == document["model"]["digest"] == weights
    assert document["state"] == "Promoted"


def test_machines_that_see_one_folder_train_as_one_machine(cluster, weights):
    check(cluster.clone("shared", shared=True).train().document(), weights)


def test_machines_that_see_the_store_need_not_see_the_clone(cluster, weights):
    run = cluster.clone("apart", RETRAIN_STORE=f"{SHARED}/store").train()
    check(run.document(), weights)
    assert EPOCH in run.said
    assert subprocess.call(cluster.other.command(["test", "-e", "/tmp/apart"])) == 1


def test_a_machine_that_does_not_see_the_store_is_named_before_the_training(cluster):
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
