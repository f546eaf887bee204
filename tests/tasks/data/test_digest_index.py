"""Finds images by digests, in memory and on disk."""

import hashlib

import numpy as np
import pytest

from tasks.data.digest_index import DigestIndex


def digest(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.mark.parametrize("saved", [False, True])
def test_places_are_found_by_digest_and_others_are_not(tmp_path, saved):
    numbers = [*range(100), 7, 8]  # of equal ones, the first
    index = DigestIndex.of([[*map(digest, numbers[:30])], [], [*map(digest, numbers[30:])]])
    if saved:
        index.save(tmp_path)
        index = DigestIndex.load(tmp_path)
    assert index.find([digest(number) for number in (99, 7, 100, 0)]).tolist() == [99, 7, -1, 0]
    assert index.find([]).tolist() == []
    assert index.find(["f" * 64, "0" * 64]).tolist() == [-1, -1]


def test_among_no_images_none_is_found():
    assert np.array_equal(DigestIndex.of([]).find([digest(1), digest(2)]), [-1, -1])
