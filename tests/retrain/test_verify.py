"""Checks of artifacts that have changed: real files, flipped bytes, threads and locks."""

from dataclasses import replace
from pathlib import Path

import pytest

from retrain import verify as module
from retrain.errors import DamagedArtifactError
from retrain.outputs import MANIFEST
from retrain.verify import Verifier, discard_if_damaged, retry_damaged, verify
from tests.retrain.test_store import make_toy, with_lr


def flip(path, position=-1):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.fixture
def made(store, context):
    return make_toy(store, context)


def verified(store):
    return verify(store, lambda done, total: None)


@pytest.mark.parametrize("name", ["lr.txt", "report/time.txt"])
def test_a_flipped_byte_is_found_wherever_it_is(store, context, made, name):
    make_toy(store, context, with_lr(0.5))
    progress = []
    assert verify(store, lambda *now: progress.append(now)) == []
    assert progress == [(1, 2), (2, 2)]
    flip(made.folder / name)
    assert store.damage("toy", made.key) is None  # the size is the same
    [damage] = verified(store)
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
        assert verified(store) == []
        assert list(store.leftovers()) == []
    assert len(verified(store)) == 1
    assert [path for _, _, path in store.leftovers()] == [store.partial("toy", made.key)]


@pytest.mark.parametrize("is_trusted", [False, True])
def test_an_artifact_is_read_at_most_once_in_a_run(store, made, monkeypatch, is_trusted):
    read, real = [], module.sha256_of
    monkeypatch.setattr(
        module, "sha256_of", lambda path, show: read.append(Path(path).name) or real(path, show)
    )
    verifier = Verifier(store)
    if is_trusted:  # the run has made it
        verifier.trust(made)
    for _ in range(2):
        verifier.check([made])
    assert sorted(read) == ([] if is_trusted else ["lr.txt", "time.txt"])
    flip(made.folder / "lr.txt")
    with pytest.raises(DamagedArtifactError, match=r"lr\.txt has changed"):
        Verifier(store).check([made])


def test_an_artifact_that_is_replaced_by_another_output_meanwhile_is_noticed(store, made):
    with pytest.raises(DamagedArtifactError, match="made again with another output"):
        Verifier(store).check([replace(made, digest="ab" * 32)])
    assert store.find("toy", made.key) == made


def test_an_artifact_that_is_damaged_again_ends_the_run():
    calls, notes = [], []

    def call():
        calls.append(1)
        raise DamagedArtifactError("toy", "ab", f"its {MANIFEST} has changed")

    with pytest.raises(DamagedArtifactError, match="made again"):
        retry_damaged(call, notes.append)
    assert (len(calls), len(notes)) == (2, 1)
