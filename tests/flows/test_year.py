"""Plays weeks of a project: data that grow, a camera that changes, a bad delivery, a rollback.

    make year WEEKS=52

Each week is what a schedule and people do: new images are delivered, the model is trained on all of
them, the champion classifies what comes in, and what has grown old is removed. At the end all must
be as it was played, and whole.
"""

import os

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from ruamel.yaml import YAML

from tests import templates
from tests.flows.conftest import make_clone

pytestmark = pytest.mark.slow

WEEKS = int(os.environ.get("WEEKS", "5"))
BAD, DRIFT, BACK = WEEKS // 2 - 1, WEEKS // 2, WEEKS - 2  # the weeks of events
FIRST, BATCH = 500, 40  # images
WORKLOAD = {
    "data": {"path": "photos"},
    "images": {"size": 8, "channels": 1},
    "model": {"family": "vit", "patch_size": 4, "hidden_size": 64, "layers": 2, "heads": 4},
    "train": {"epochs": 8, "batch_size": 64, "lr": 0.003, "schedule": "one_cycle", "seed": 0},
    "gate": {"min": {"accuracy": 0.7}, "margin": 0.05},
}


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits, uint8 (n, 8, 8), and what they show."""
    from sklearn.datasets import load_digits

    source = load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    return np.round(source.images * (255 / 16)).astype(np.uint8)[order], source.target[order]


def write(folder, digits, numbers, week):
    """Writes images that came in in a week; a new camera gives negatives.

    When all digits have come, they come again, shifted.
    """
    for number in numbers:
        turn, place = divmod(number, len(digits[0]))
        pixels = np.roll(digits[0][place], turn, axis=turn % 2)
        path = folder / str(digits[1][place]) / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - pixels if week >= DRIFT else pixels).save(path)


def batch(week):
    """The numbers of the images of a week; they are delivered in the next one."""
    return range(FIRST + week * BATCH, FIRST + (week + 1) * BATCH)


def found(clone, command, *arguments, code=0):
    return clone.json(command, "digits", *arguments, code=code)


def refused(clone, photos):
    """A delivery with a class of nothing but empty files is refused; people mend it."""
    for number in range(3):
        broken = photos / "10" / f"{number}.png"
        broken.parent.mkdir(exist_ok=True)
        broken.touch()
    assert "rejected" in found(clone, "train", code=1)["error"]
    for path in (photos / "10").iterdir():
        path.unlink()
    (photos / "10").rmdir()


def test_weeks_lead_to_what_was_played(tmp_path, prefect_api, digits):
    clone = make_clone(tmp_path / "clone", prefect_api)
    templates.place_mlflow_database(clone.root)
    params, yaml = clone.root / "params.yaml", YAML()
    tree = yaml.load(params.read_text())
    tree["workloads"]["digits"] = WORKLOAD
    with params.open("w") as file:
        yaml.dump(tree, file)
    photos, incoming = clone.root / "photos", tmp_path / "incoming"
    write(photos, digits, range(FIRST), 0)
    played, champion, drifted = [], None, []
    for week in range(WEEKS):
        if week:
            write(photos, digits, batch(week - 1), week - 1)
        if week == BAD:
            refused(clone, photos)
        document = found(clone, "train")
        version, state = document["model"]["version"], document["state"].lower()
        assert sum(document["data"]["rows"].values()) == FIRST + week * BATCH
        played.append((state, version))
        champion = version if state == "promoted" else champion
        if week == BACK:
            before = [made for state, made in played[:-1] if state == "promoted"]
            if champion != before[-1]:
                done = found(clone, "rollback", "--reason", "night images got worse")
                champion = done["version"]
                played.append(("rolled back", champion))
                assert champion == before[-1]
                again = found(clone, "train")  # which does not bring it back
                played.append((again["state"].lower(), again["model"]["version"]))
                assert again["state"] == "Rejected"
        write(incoming / f"{week}", digits, batch(week), week)
        output = tmp_path / f"{week}.parquet"
        places = ("--input", str(incoming / f"{week}"), "--output", str(output))
        answered = found(clone, "predict", *places)
        assert answered["model"]["version"] == champion
        drifted += [week] if answered["drift"]["drifted"] else []
        assert None not in pq.read_table(output)["label"].to_pylist()
        clone.retrain("gc", "--days", "1", "--yes")
    history = found(clone, "history", "--last", "0")
    decided = [(entry["action"], entry["version"]) for entry in history]
    assert sorted(decided) == sorted(played)
    assert DRIFT in drifted
    assert not any(clone.json("verify")[kind] for kind in ("damaged", "packages"))
    for version in {made for _, made in played}:
        output = tmp_path / f"version-{version}.parquet"
        places = ("--input", str(photos), "--output", str(output), "--version", str(version))
        found(clone, "predict", *places)
        assert len(pq.read_table(output)) == FIRST + (WEEKS - 1) * BATCH
