"""The suspects of a step, and wrong labels among clusters whose true classes are known."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.special import log_softmax

from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate
from tasks.suspects import step
from tasks.suspects.embeddings import EMBEDDINGS
from tasks.suspects.step import FILE, find_suspects
from tasks.validate.step import validate
from tests.tasks.toy_data import encoded, png, pulled, workspace, write_files

COUNT = 60  # images of each class


IMAGES = {
    f"{label}/{number}.png": png(start + number)
    for label, start in {"cat": 0, "dog": COUNT}.items()
    for number in range(COUNT)
}


def find(tmp_path, files):
    """The facts and the list of what is suspect in images that were validated."""
    write_files(tmp_path / "data", files)
    space = workspace(tmp_path, "validate")
    checks = Checks(min_images_per_class=1)
    facts = validate(Data(path="data"), checks, Gate(), pulled(tmp_path), None, space)
    validated = Artifact("validate", "key", "digest", space.folder, facts)
    embeddings = np.random.default_rng(0).normal(size=(len(files), 4)).astype(np.float32)
    embeddings[:, 0] += [9 * name.startswith("cat") for name in sorted(files)]
    np.save(tmp_path / EMBEDDINGS, embeddings)
    embedded = Artifact("embed_with_champion", "key", "digest", tmp_path, {})
    space = workspace(tmp_path, "find_suspects")
    counts = find_suspects(validated, embedded, space)
    return counts, json.loads((space.folder / FILE).read_bytes())


def test_where_nothing_is_suspect_the_list_is_empty(tmp_path):
    counts, listed = find(tmp_path, IMAGES)
    assert listed == []
    assert counts["can_tell"]
    names = ("rows", "wrong_labels", "contradictions", "outliers", "accuracy", "findable")
    assert [counts[name] for name in names] == [2 * COUNT, 0, 0, 0, 1.0, 1.0]


def test_what_looks_like_an_image_of_another_class_is_found_by_what_validate_has_seen(tmp_path):
    photo = Image.effect_noise((64, 64), 60)
    brighter = encoded(photo.point(lambda grey: min(255, grey + 5)), "PNG")
    alike = {"cat/a.png": encoded(photo, "PNG"), "dog/b.png": brighter}
    counts, listed = find(tmp_path, IMAGES | alike)
    assert counts["contradictions"] == 2
    why = "contradictory near-duplicate"
    assert sorted((row["path"], row["look_alike"], row["why"]) for row in listed) == [
        ("cat/a.png", "dog/b.png", why),
        ("dog/b.png", "cat/a.png", why),
    ]


CLASSES = 5


def clusters(spread: float, images: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings around a centre for each class, and their true classes."""
    random = np.random.default_rng(0)
    truth = random.integers(0, CLASSES, images)
    centres = random.normal(size=(CLASSES, 16))
    noise = spread * random.normal(size=(images, 16))
    return (centres[truth] + noise).astype(np.float32), truth


def look(spread: float, share: float = 0.0):
    """What is found in clusters of which a share of the labels is wrong.

    Returns:
        The labels, the true ones, the logarithms of the probabilities, the noise, and the images.
    """
    embeddings, truth = clusters(spread)
    random = np.random.default_rng(1)
    wrong = random.choice(len(truth), round(share * len(truth)), replace=False)
    labels = truth.copy()
    labels[wrong] = (labels[wrong] + random.integers(1, CLASSES, len(wrong))) % CLASSES
    logs, noise = step.log_probabilities(step.out_of_sample(embeddings, labels), labels)
    return labels, truth, logs, noise, step.wrong_labels(logs, noise, labels)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_wrong_labels_are_found_counted_and_corrected(share):
    labels, truth, logs, noise, found = look(spread=0.8, share=share)
    is_wrong = labels != truth
    assert noise == pytest.approx(share, rel=0.25)
    assert is_wrong[found].sum() >= 0.7 * is_wrong.sum()
    assert is_wrong[found].mean() >= 0.5
    right = step.without_label(logs, labels).argmax(axis=1)[found] == truth[found]
    assert right[is_wrong[found]].mean() >= 0.95


@pytest.mark.parametrize(("spread", "can_tell"), [(0.5, True), (0.8, True), (2.0, False)])
@pytest.mark.parametrize("share", [0.001, 0.03])
def test_it_is_known_how_many_wrong_labels_would_be_found(spread, can_tell, share):
    labels, truth, logs, noise, found = look(spread, share)
    findable = step.findable(logs, noise, labels, found)
    assert (findable >= step.ENOUGH) is can_tell
    if noise > 0.02:  # of so many wrong labels one can count those that are found
        is_wrong = labels != truth
        assert is_wrong[found].sum() / is_wrong.sum() == pytest.approx(findable, abs=0.1)


def test_right_labels_of_classes_that_are_alike_are_not_listed():
    _, truth, logs, noise, found = look(spread=2.0)  # two of five are taken for another class
    assert (logs.argmax(axis=1) == truth).mean() < 0.75
    assert noise < 0.005
    assert len(found) <= 0.002 * len(truth)


def test_a_class_of_a_single_image_is_no_proposal_for_it():
    embeddings, truth = clusters(spread=0.8, images=500)
    labels = np.append(truth, CLASSES)
    more = np.append(embeddings, np.full((1, 16), 9, np.float32), axis=0)
    logs, _ = step.log_probabilities(step.out_of_sample(more, labels), labels)
    assert logs[-1, CLASSES] == -np.inf
    assert not np.isnan(logs).any()
    assert step.without_label(logs, labels).argmax(axis=1)[-1] < CLASSES


def test_where_all_probabilities_are_0_and_1_the_most_improbable_label_comes_first():
    margins = np.array([-50.0, -90, -70, *[60] * 20])  # of the label to class 1; class 2 is far
    logits = np.stack([margins, np.zeros(23), np.full(23, -900)], axis=1)
    logs, labels = log_softmax(logits, axis=1), np.zeros(23, np.int64)
    assert step.wrong_labels(logs, 0.1, labels).tolist() == [1, 2, 0]
    assert step.without_label(logs, labels).argmax(axis=1).tolist() == [1] * 23


def test_what_is_far_from_every_class_is_an_outlier():
    embeddings, truth = clusters(spread=0.8)
    embeddings[[42, 7]] += [[12], [30]]
    distances = step.distances_from_others(embeddings, truth)
    assert step.far_out(distances).tolist() == [7, 42]
    assert np.median(distances) == pytest.approx(4, rel=0.1)  # of 16 directions
    alike = step.distances_from_others(np.ones((100, 4), np.float32), np.arange(100) % 3)
    assert step.far_out(alike).tolist() == []
