"""A run on a cluster ends with the same bits when machines and servers fail, and decides once."""

import signal
from time import sleep

import pytest

from tests.cluster.servers import BUCKET

pytestmark = pytest.mark.cluster

AWAY_SECONDS = 60.0
# What a run tells in the middle of a training, and after a step.
EPOCH, PREPROCESSED, TRAINED, EVALUATED = (
    "  train  epoch",
    *(f"{step:<20} ran" for step in ("preprocess", "train", "evaluate")),
)


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
    clone, dvc = cluster.clone("busy"), ("python", "-m", "dvc")
    clone.run(*dvc, "fetch", "data.dvc")
    clone.run(*dvc, "remote", "add", "--default", "team", f"s3://{BUCKET}/data")
    clone.run(*dvc, "remote", "modify", "team", "endpointurl", cluster.servers.s3)
    clone.run(*dvc, "push", "data.dvc")
    clone.run("rm", "-r", ".dvc/cache")
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


def test_servers_that_are_away_for_a_minute_at_each_step(cluster, weights):
    clone, servers = cluster.clone("away"), cluster.servers
    run = clone.start("train", "vit", "--as", "away")
    for moment, server in (
        (PREPROCESSED, servers.mlflow),
        (EPOCH, servers.postgres),
        (TRAINED, servers.mlflow),
        (EVALUATED, servers.prefect),
    ):
        run.wait_for(moment)
        server.kill()
        sleep(AWAY_SECONDS)
        server.start()
    cluster.check(clone, run.document(), "away", weights)
