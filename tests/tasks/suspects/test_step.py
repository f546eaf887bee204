"""Which images of some data a person is asked to look at."""

import json

import numpy as np
import pytest
from PIL import Image

from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate
from tasks.data import image_table
from tasks.suspects.embeddings import EMBEDDINGS
from tasks.suspects.step import FILE, find_suspects
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files

COUNT = 60  # images of each class


@pytest.fixture
def find(tmp_path):
    """A function that writes images, has them validated, and finds what is suspect in them."""

    def found(files):
        write_files(tmp_path / "data", files)
        data, checks = Data(path="data"), Checks(min_images_per_class=1)
        space = workspace(tmp_path, "validate")
        facts = validate(data, checks, Gate(), pulled(tmp_path), space)
        validated = Artifact("validate", "key", "digest", space.folder, facts)
        labels = image_table.read_split(space.folder, columns=["label"])["label"].to_pylist()
        embeddings = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)
        embeddings[:, 0] += [9 * (label == "cat") for label in labels]
        np.save(tmp_path / EMBEDDINGS, embeddings)
        embedded = Artifact("embed_with_champion", "key", "digest", tmp_path, {})
        space = workspace(tmp_path, "find_suspects")
        counts = find_suspects(validated, embedded, space)
        return counts, json.loads((space.folder / FILE).read_bytes())

    return found


def images(**more):
    files = {
        f"{label}/{number}.png": png(start + number)
        for label, start in {"cat": 0, "dog": COUNT}.items()
        for number in range(COUNT)
    }
    return files | more


def test_where_nothing_is_suspect_the_list_is_empty(find):
    counts, listed = find(images())
    assert listed == []
    assert (counts["wrong_labels"], counts["contradictions"], counts["outliers"]) == (0, 0, 0)
    assert counts["rows"] == 2 * COUNT


def test_what_looks_like_an_image_of_another_class_is_found_by_what_validate_has_seen(find):
    photo = Image.effect_noise((64, 64), 60)
    brighter = encoded(photo.point(lambda grey: min(255, grey + 5)), "PNG")
    counts, listed = find(images(**{"cat/a.png": encoded(photo, "PNG"), "dog/b.png": brighter}))
    assert counts["contradictions"] == 2
    twins = {row["path"]: row["look_alike"] for row in listed if row["look_alike"]}
    assert twins == {"cat/a.png": "dog/b.png", "dog/b.png": "cat/a.png"}
    assert all(row["why"] == "contradictory near-duplicate" for row in listed)
