"""A run on a cluster ends with the same bits when machines and servers fail, and decides once."""

import signal
from collections.abc import Iterator
from time import sleep

import pytest

from tests.cluster.conftest import Clone, Cluster, Run
from tests.cluster.servers import BUCKET

pytestmark = pytest.mark.cluster

AWAY_SECONDS = 60.0
EPOCH = "  train  epoch"  # what a run tells in the middle of a training
STEPS = ("pull", "validate", "preprocess", "train", "evaluate", "gate")


def after_each_step(run: Run) -> Iterator[None]:
    """Goes on when a step of a run has ended, and the next one begins."""
    for step in STEPS:
        run.wait_for(f"{step:<20} ran")
        yield


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_machine_that_is_lost_in_an_epoch(cluster, weights, comes_back):
    name = "lost-and-back" if comes_back else "lost"
    clone = cluster.clone(name)
    run = clone.start("train", "vit", "--as", name)
    run.wait_for(EPOCH)
    cluster.turn_off_other()
    if comes_back:
        cluster.turn_on_other()
    cluster.check(clone, run.document(), name, weights)


def test_a_machine_that_is_cut_off_for_a_minute(cluster, weights):
    clone = cluster.clone("cut")
    run = clone.start("train", "vit", "--as", "cut")
    run.wait_for(EPOCH)
    cluster.network.cut_off(cluster.other)
    sleep(AWAY_SECONDS)
    cluster.network.join(cluster.other)
    cluster.check(clone, run.document(), "cut", weights)


def test_an_object_store_that_is_busy_then_hangs_and_then_is_slow(cluster, weights):
    clone = with_data_in_s3(cluster, "busy")
    cluster.servers.misbehave("503")
    run = clone.start("train", "vit", "--as", "busy")
    run.wait_for("pull is tried again")
    sleep(AWAY_SECONDS)
    cluster.servers.misbehave("")
    run.wait_for(EPOCH)
    cluster.servers.moto.send(signal.SIGSTOP)
    sleep(AWAY_SECONDS)
    cluster.servers.moto.send(signal.SIGCONT)
    cluster.servers.misbehave("slow")
    cluster.check(clone, run.document(), "busy", weights)


def with_data_in_s3(cluster: Cluster, name: str) -> Clone:
    """A clone whose data is in a DVC remote on S3 alone."""
    clone, dvc = cluster.clone(name), ("python", "-m", "dvc")
    clone.run(*dvc, "fetch", "data.dvc")
    clone.run(*dvc, "remote", "add", "--default", "team", f"s3://{BUCKET}/data")
    clone.run(*dvc, "remote", "modify", "team", "endpointurl", cluster.servers.s3)
    clone.run(*dvc, "push", "data.dvc")
    clone.run("rm", "-r", ".dvc/cache")
    return clone


def test_an_object_store_that_is_busy_for_a_minute_at_each_step(cluster, weights):
    clone = with_data_in_s3(cluster, "busy-again")
    run = clone.start("train", "vit", "--as", "busy-again")
    for _ in after_each_step(run):
        cluster.servers.misbehave("503")
        sleep(AWAY_SECONDS)
        cluster.servers.misbehave("")
    cluster.check(clone, run.document(), "busy-again", weights)


def test_an_mlflow_that_is_away_for_a_minute_at_each_step(cluster, weights):
    clone = cluster.clone("away")
    run = clone.start("train", "vit", "--as", "away")
    for _ in after_each_step(run):
        cluster.servers.mlflow.kill()
        sleep(AWAY_SECONDS)
        cluster.servers.mlflow.start()
    cluster.check(clone, run.document(), "away", weights)


def test_a_database_that_is_restarted_at_each_step(cluster, weights):
    clone = cluster.clone("restarted")
    run = clone.start("train", "vit", "--as", "restarted")
    for _ in after_each_step(run):
        cluster.servers.postgres.kill()
        sleep(5.0)  # its other processes end
        cluster.servers.postgres.start()
    cluster.check(clone, run.document(), "restarted", weights)


def test_servers_that_are_away_for_a_minute_in_a_training(cluster, weights):
    clone = cluster.clone("alone-again")
    run = clone.start("train", "vit", "--as", "alone-again")
    run.wait_for(EPOCH)
    for server in (cluster.servers.postgres, cluster.servers.prefect):
        server.kill()
        sleep(AWAY_SECONDS)
        server.start()
    cluster.check(clone, run.document(), "alone-again", weights)
