"""A file to try, and the ways in which files are damaged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

Random = np.random.Generator
# Makes the ending of a file's name, its content, and whether it is good.
Maker = Callable[[Random], tuple[str, bytes, bool | None]]


@dataclass(frozen=True)
class Case:
    """A file to try.

    Attributes:
        kind: Its row in the table.
        name: Of the file; unique.
        data: Its content.
        good: Whether it has to be accepted; None if either is right.
    """

    kind: str
    name: str
    data: bytes
    good: bool | None

    def fault(self, accepted: bool, unreadable: str, message: str) -> str:
        """What is wrong with its verdict; empty if nothing is.

        Args:
            accepted: Whether it was accepted.
            unreadable: Why an accepted image cannot be loaded; empty if it can.
            message: Why it was refused.
        """
        if accepted and unreadable:
            return f"accepted, but {unreadable}"
        if accepted and self.good is False:
            return "accepted, but cannot be good"
        return f"refused, but is good: {message}" if self.good and not accepted else ""


def make_cases(group: str, makers: Mapping[str, Maker], count: int, seed: int) -> list[Case]:
    """As many cases, of all kinds in turns; each depends on the seed and its number alone."""
    cases, kinds = [], list(makers)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        ending, data, good = makers[kind](np.random.default_rng([seed, *group.encode(), number]))
        cases.append(Case(f"{group}: {kind}", f"{group}-{number:05d}{ending}", data, good))
    return cases


def choose(rng: Random, options):
    """One of some options."""
    return options[rng.integers(len(options))]


def truncated(rng: Random, data: bytes) -> bytes:
    """The beginning of a file."""
    return data[: rng.integers(1, max(2, len(data)))]


def flipped(rng: Random, data: bytes) -> bytes:
    """A file in which up to ten bytes are others."""
    changed = bytearray(data)
    for place in rng.integers(0, len(data), rng.integers(1, 11)):
        changed[place] ^= int(rng.integers(1, 256))
    return bytes(changed)


def spliced(rng: Random, data: bytes) -> bytes:
    """A file with random bytes somewhere in the middle."""
    place = int(rng.integers(0, len(data)))
    return data[:place] + rng.bytes(int(rng.integers(1, 300))) + data[place:]


DAMAGES = {"truncated": truncated, "flipped bytes": flipped, "added bytes": spliced}


def damaged(make: Maker) -> dict[str, Maker]:
    """The kinds of cases that are damaged files of another kind; they may be good or not."""

    def after(damage: Callable[[Random, bytes], bytes]) -> Maker:
        def damage_one(rng: Random):
            ending, data, _ = make(rng)
            return ending, damage(rng, data), None

        return damage_one

    return {name: after(damage) for name, damage in DAMAGES.items()}
