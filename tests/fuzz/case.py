"""What is tried, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Random = np.random.Generator


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


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        case: What was tried.
        verdict: `accepted`, `set aside` or `refused`.
        failure: What is wrong with that; empty if nothing is.
        set_aside: How many images of an accepted data set were set aside.
    """

    case: Case
    verdict: str
    failure: str = ""
    set_aside: int = 0


# Makes the ending of a file's name, its content, and whether it is good.
Maker = Callable[[Random], tuple[str, bytes, bool | None]]


def make_cases(group: str, makers: dict[str, Maker], count: int, seed: int) -> list[Case]:
    """As many cases, of all kinds in turns; each depends on the seed and its number alone."""
    cases = []
    kinds = list(makers)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        rng = np.random.default_rng([seed, *group.encode(), number])
        ending, data, good = makers[kind](rng)
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
