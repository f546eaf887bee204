"""A machine of a cluster keeps what runs use, and forgets the rest."""

import os
import time

import pytest

from retrain.atomic import write_json
from retrain.outputs import MANIFEST
from retrain.store import Store
from tasks.compute import machine

LONG_AGO = time.time() - (machine.UNUSED_DAYS + 1) * machine.DAY


@pytest.fixture
def store(tmp_path):
    """A store with two artifacts and a scratch folder that were last used long ago."""
    store = Store(tmp_path)
    for key in ("used", "unused"):
        store.folder("pull", key).mkdir(parents=True)
        write_json(store.folder("pull", key) / MANIFEST, {"files": []})
    (store.scratch("validate", "killed") / "part").touch()
    for path in [*tmp_path.rglob("*"), tmp_path]:
        os.utime(path, (LONG_AGO, LONG_AGO))
    return store


def test_what_nobody_has_used_for_long_goes(store):
    machine.bring(store, [store.folder("pull", "used") / MANIFEST])
    machine.forget_unused(store)
    assert [*store.entries()] == [("pull", "used")]
    assert not [*store.root.glob("scratch/*/*")]


def test_what_came_before_a_training_stays_as_long_as_that_goes_on(store):
    with store.runs.holding("training"):
        [hold] = store.runs.folder.glob("*.lock")
        os.utime(hold, (LONG_AGO, LONG_AGO))
        machine.forget_unused(store)
    assert len([*store.entries()]) == 2
    assert [*store.root.glob("scratch/*/*")]
    machine.forget_unused(store)
    assert not [*store.entries()]
