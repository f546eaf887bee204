"""Finds where the entries of a ledger do not follow each other, by the digests that they name."""

import json
from collections.abc import Iterator, Mapping

from retrain.registry.ledger import key_of, sha256_of, split_seal


def broken_chain(values: Mapping[str, str], seal: str) -> Iterator[str]:
    """Where the entries do not follow each other.

    Args:
        values: The parameters of the ledger's run.
        seal: The number and the digest of an entry, as the registered model's tag has them.
    """
    before = {}
    for key, value in sorted(values.items()):
        try:
            if int(key) < 1 or key != key_of(int(key)):
                raise ValueError
            before[int(key)] = json.loads(value)["before"]
        except (ValueError, TypeError, KeyError):
            yield f"entry {key} was changed, or it is none"
    sealed, digest = split_seal(seal)
    expected: str | None = ""  # None after an entry that is gone
    for number in range(1, max(sealed, *before, 0) + 1):
        value = values.get(key_of(number), "")
        if not value:
            yield f"entry {number} is gone"
        elif number in before and expected not in (None, before[number]):
            yield (
                f"entry {number - 1} or {number} was changed: the one does not follow the other"
                if number > 1
                else "entry 1 was changed: it follows another one, and should be the first"
            )
        expected = sha256_of(value) if value else None
        if number == sealed and value and expected != digest:
            yield f"entry {number} was changed since it was carried out"
