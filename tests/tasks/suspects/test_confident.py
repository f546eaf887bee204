"""Wrong labels among clusters whose true classes are known."""

import numpy as np
import pytest

from tasks.suspects import confident, outliers

CLASSES = 5


def clusters(spread: float, images: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings around a centre for each class, and their true classes."""
    random = np.random.default_rng(0)
    truth = random.integers(0, CLASSES, images)
    centres = random.normal(size=(CLASSES, 16))
    noise = spread * random.normal(size=(images, 16))
    return (centres[truth] + noise).astype(np.float32), truth


def with_wrong(truth: np.ndarray, share: float) -> np.ndarray:
    random = np.random.default_rng(1)
    wrong = random.choice(len(truth), round(share * len(truth)), replace=False)
    labels = truth.copy()
    labels[wrong] = (labels[wrong] + random.integers(1, CLASSES, len(wrong))) % CLASSES
    return labels


def look(embeddings, labels):
    logits = confident.out_of_sample(embeddings, labels)
    logs, noise = confident.log_probabilities(logits, labels)
    return logs, noise, confident.wrong_labels(logs, noise, labels)


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_wrong_labels_are_found_counted_and_corrected(share):
    embeddings, truth = clusters(spread=0.8)
    labels = with_wrong(truth, share)
    logs, noise, found = look(embeddings, labels)
    is_wrong = labels != truth
    assert noise == pytest.approx(share, rel=0.25)
    assert is_wrong[found].sum() >= 0.7 * is_wrong.sum()
    assert is_wrong[found].mean() >= 0.5
    right = confident.proposals(logs, labels)[found] == truth[found]
    assert right[is_wrong[found]].mean() >= 0.95


def test_right_labels_of_classes_that_are_alike_are_not_listed():
    embeddings, truth = clusters(spread=2.0)  # two of five are taken for another class
    logs, noise, found = look(embeddings, truth)
    assert (logs.argmax(axis=1) == truth).mean() < 0.75
    assert noise < 0.005
    assert len(found) <= 0.002 * len(truth)


def test_no_image_has_seen_its_own_label():
    embeddings, truth = clusters(spread=0.8, images=500)
    fold = confident._folds(truth)
    alone = confident._discriminate(
        embeddings[fold != fold[7]], truth[fold != fold[7]], embeddings[7:8], CLASSES
    )
    assert confident.out_of_sample(embeddings, truth)[7] == pytest.approx(alone[0], rel=1e-4)


def test_a_class_of_a_single_image_is_no_proposal_for_it():
    embeddings, truth = clusters(spread=0.8, images=500)
    labels = np.append(truth, CLASSES)
    embeddings = np.concatenate([embeddings, np.full((1, 16), 9, np.float32)])
    logs, _, _ = look(embeddings, labels)
    assert logs[-1, CLASSES] == -np.inf
    assert not np.isnan(logs).any()
    assert confident.proposals(logs, labels)[-1] < CLASSES


def test_where_all_probabilities_are_0_and_1_the_most_improbable_label_comes_first():
    margins = np.array([-50.0, -90, -70, *[60] * 20])  # of the label to class 1; class 2 is far
    logits = np.stack([margins, np.zeros(23), np.full(23, -900)], axis=1)
    logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    labels = np.zeros(23, np.int64)
    assert confident.wrong_labels(logs, 0.1, labels).tolist() == [1, 2, 0]
    assert confident.proposals(logs, labels).tolist() == [1] * 23


def test_what_is_far_from_every_class_is_an_outlier():
    embeddings, truth = clusters(spread=0.8)
    embeddings[42] += 12
    embeddings[7] += 30
    distances = outliers.distances(embeddings, truth)
    assert outliers.far_out(distances).tolist() == [7, 42]
    assert np.median(distances) == pytest.approx(4, rel=0.1)  # of 16 directions


def test_embeddings_that_are_all_the_same_have_no_outliers():
    truth = np.arange(100) % 3
    distances = outliers.distances(np.ones((100, 4), np.float32), truth)
    assert outliers.far_out(distances).tolist() == []
