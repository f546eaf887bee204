"""Digests of values, however they are cut into pieces."""

import hashlib
import json

import pytest

from retrain import disk
from retrain.disk import digest_of

NAMES = {f"{letter}{number}": number for number, letter in enumerate("aü\ud800bc" * 2)}
VALUES = [
    NAMES,
    {"facts": {"rows": {}, "none": None}, "files": NAMES, "list": [NAMES]},
    {},
    [],
    0.5,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_digest_is_that_of_the_json_in_the_order_of_its_keys(value, monkeypatch):
    monkeypatch.setattr(disk, "ITEMS", 3)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert digest_of(value) == hashlib.sha256(text.encode()).hexdigest()


def test_what_is_no_number_has_no_digest():
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_of({"rate": float("nan")})
