"""Checks of artifacts that have changed: real files, flipped bytes, threads and locks."""

from dataclasses import replace
from pathlib import Path

import pytest

from retrain import store as module
from retrain.errors import DamagedArtifactError
from retrain.outputs import MANIFEST, plan
from retrain.step import Step
from retrain.store import discard_if_damaged, refuse_damaged, verify
from tests import running
from tests.retrain.test_store import DATA, STEP, WORKLOAD, make_toy, with_lr


def flip(path, position=-1):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.fixture
def made(store, context):
    return make_toy(store, context)


@pytest.mark.parametrize("name", ["lr.txt", "report/time.txt"])
def test_a_flipped_byte_is_found_wherever_it_is(store, context, made, name):
    make_toy(store, context, with_lr(0.5))
    assert verify(store) == []
    flip(made.folder / name)
    assert store.damage("toy", made.key) is None  # the size is the same
    [damage] = verify(store)
    assert (damage.step, damage.key, damage.reason) == ("toy", made.key, f"{name} has changed")


def test_a_damaged_artifact_is_discarded_and_an_undamaged_one_is_not(store, made):
    discard_if_damaged(store, "toy", made.key)
    assert store.find("toy", made.key) == made
    flip(made.folder / "lr.txt")
    discard_if_damaged(store, "toy", made.key)
    assert not made.folder.exists()


def test_an_artifact_that_is_being_made_again_is_not_reported(store, made):
    flip(made.folder / "lr.txt")
    store.partial("toy", made.key).mkdir()
    with store.lock("toy", made.key):
        assert verify(store) == []
        assert list(store.leftovers()) == []
    assert len(verify(store)) == 1
    assert [path for _, _, path in store.leftovers()] == [store.partial("toy", made.key)]


@pytest.mark.parametrize("is_made", [False, True])
def test_an_artifact_is_read_at_most_once_in_a_run(store, context, made, monkeypatch, is_made):
    read, real = [], module.sha256_of
    monkeypatch.setattr(
        module, "sha256_of", lambda path, show: read.append(Path(path).name) or real(path, show)
    )
    reads = Step("reads", lambda *_: {}, inputs=("toy",), cached=False)
    run = running.run_in(store, context, WORKLOAD, refresh=is_made)
    if is_made:
        made = run.make(STEP, plan(STEP, WORKLOAD, [DATA]), WORKLOAD, [DATA])[0]
        read.clear()
    for _ in range(2):
        run(reads, made)
    assert sorted(read) == ([] if is_made else ["lr.txt", "time.txt"])
    flip(made.folder / "lr.txt")
    with pytest.raises(DamagedArtifactError, match=r"lr\.txt has changed"):
        running.run_in(store, context, WORKLOAD)(reads, made)


def test_an_artifact_that_is_replaced_by_another_output_meanwhile_is_noticed(store, made):
    with pytest.raises(DamagedArtifactError, match="made again with another output"):
        refuse_damaged(store, replace(made, digest="ab" * 32))
    assert store.find("toy", made.key) == made


def test_an_artifact_that_is_damaged_again_ends_the_run(store, context):
    calls = []

    def body(version):
        calls.append(version)
        raise DamagedArtifactError("toy", "ab", f"its {MANIFEST} has changed")

    with pytest.raises(DamagedArtifactError, match="made again"):
        running.run_in(store, context, WORKLOAD).follow(body)
    assert len(calls) == 2
