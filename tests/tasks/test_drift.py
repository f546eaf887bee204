"""Distances between two samples, in units of what chance puts between them."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import ks_2samp

from retrain.project import Project
from tasks.data.predictions import SAMPLE_SCHEMA
from tasks.drift import TEST_SPLIT, compare, report, sentence
from tests.tasks.toy_model import VERSION

NAMES = ("label", "confidence", "side", "aspect", "brightness", "contrast", "embedding")


def embeddings(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Of images of three classes."""
    places = np.random.default_rng(0).normal(0, 2, (3, 16))
    return (places[rng.integers(3, size=rows)] + rng.normal(size=(rows, 16))).astype(np.float32)


def draw(seed: int, rows: int = 400, **changed) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {
        "sha256": [f"{seed}-{row}" for row in range(rows)],
        "label": rng.choice(["ant", "bee", "cat"], rows, p=[0.5, 0.3, 0.2]),
        "confidence": rng.uniform(0.5, 1, rows),
        "side": np.full(rows, 8.0),
        "aspect": np.ones(rows),
        "brightness": rng.normal(0.5, 0.1, rows),
        "contrast": rng.normal(0.2, 0.05, rows),
        "features": list(embeddings(rng, rows)),
    }
    return pa.table(columns | changed, SAMPLE_SCHEMA)


def scores(reference: pa.Table, incoming: pa.Table) -> dict[str, float]:
    return {each["feature"]: each["score"] for each in compare(reference, incoming)}


def test_a_sample_is_not_far_from_itself():
    assert scores(draw(0), draw(0)) == pytest.approx(dict.fromkeys(NAMES, 0.0), abs=1e-4)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_sample_is_not_far_from_another_of_the_same_images(seed):
    found = scores(draw(0), draw(seed, rows=300))
    assert max(found.values()) < 1.5
    assert scores(draw(0), draw(seed, rows=300)) == found


@pytest.mark.parametrize("name", ["confidence", "brightness", "contrast"])
def test_the_distance_of_numbers_is_that_of_kolmogorov_and_smirnov(name):
    samples = draw(0), draw(1, rows=300)
    [found] = [each["distance"] for each in compare(*samples) if each["feature"] == name]
    assert found == pytest.approx(ks_2samp(*(each[name].to_numpy() for each in samples)).statistic)


@pytest.mark.parametrize(("seed", "most", "drifts"), [(1, 1, False), (2, 1, False), (4, 3, True)])
def test_a_thousand_classes_are_no_drift_unless_their_shares_differ(seed, most, drifts):
    names = [f"class {number}" for number in range(1000)]
    shares = np.repeat([most, 1], 500) / (500 * most + 500)
    labels = np.random.default_rng(seed).choice(names, 1000, p=shares)
    reference = np.random.default_rng(0).choice(names, 1000, p=[0.001] * 1000)
    score = scores(draw(0, 1000, label=reference), draw(seed, 1000, label=labels))["label"]
    assert score > 1.5 if drifts else score <= 1


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("label", np.repeat(["ant", "bee"], 200)),
        ("confidence", np.linspace(0.3, 0.8, 400)),
        ("side", np.full(400, 16.0)),
        ("brightness", np.random.default_rng(9).normal(0.6, 0.1, 400)),
        ("embedding", list(embeddings(np.random.default_rng(9), 400) + np.float32(0.5))),
    ],
)
def test_what_has_shifted_is_far_and_all_else_is_not(feature, values):
    column = "features" if feature == "embedding" else feature
    found = scores(draw(0), draw(1, **{column: values}))
    assert found.pop(feature) > 1.5
    assert max(found.values()) < 1.5


def test_without_features_the_embedding_is_not_compared():
    unknown = draw(1, features=[None] * 400)
    for samples in ((draw(0), unknown), (unknown, draw(0)), (unknown, unknown)):
        assert [each["feature"] for each in compare(*samples)] == [*NAMES[:-1]]
    some = draw(1)["features"].to_pylist()
    some[::2] = [None] * 200
    assert scores(draw(0), draw(1, features=some))["embedding"] < 1.5


def test_few_images_prove_little():
    light = np.random.default_rng(9).normal(0.6, 0.1, 400)
    many, few = (scores(draw(0), draw(1, n, brightness=light[:n])) for n in (400, 6))
    assert few["brightness"] < many["brightness"] / 2


@pytest.mark.parametrize(("copies", "is_said"), [(10, False), (200, True)])
def test_many_copies_of_an_image_are_told(tmp_path, copies, is_said):
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    digests = ["00" * 32] * copies + [f"{row:064}" for row in range(400 - copies)]
    samples = draw(0), draw(1, sha256=digests)
    found = report(Project(tmp_path), VERSION, *samples, "photos", TEST_SPLIT, "run")
    assert ("200 of the 400 images are copies of others" in sentence(found)) is is_said
    assert ("copies" in sentence(found)) is is_said
