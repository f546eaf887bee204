"""Pairs the predictions of two models: which images the two are compared on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.data.metrics import Predictions
from tasks.data.predictions import NamedPredictions
from tasks.gate.paired import Pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Comparable:
    """What two models can be compared on.

    Attributes:
        pairs: Their answers for the images that were not left out. Only the classes that these
            images have count in averages.
        absent: The classes that both models know and that these images lack.
        learnt: How many images were left out because a model was trained or validated on them.
        other_classes: How many were left out because one of the models does not know their class.
        used: bool (images,), which of the images were not left out.
    """

    pairs: Pairs
    absent: tuple[str, ...]
    learnt: int
    other_classes: int
    used: "NDArray[np.bool_]"


def pair(
    ours: NamedPredictions, theirs: NamedPredictions, learnt: "NDArray[np.uint64] | None"
) -> Comparable:
    """Pairs the predictions of two models for the same images.

    Args:
        ours: Of the challenger.
        theirs: Of the opponent.
        learnt: The images that are left out because a model was trained or validated on them, as
            `image_id` gives them; None if they are not known.
    """
    import numpy as np

    assert np.array_equal(ours.images, theirs.images)
    shared = [name for name in ours.known if name in theirs.known]
    fresh = np.ones(len(ours.images), bool) if learnt is None else ~np.isin(ours.images, learnt)
    of_shared = np.isin(ours.labels.astype(str), np.array(shared, str))
    used = fresh & of_shared
    seen = set(ours.labels[used].tolist())
    present = [name for name in shared if name in seen]
    names = tuple(dict.fromkeys((*present, *ours.known, *theirs.known)))
    return Comparable(
        Pairs(names, len(present), _indexed(ours, names, used), _indexed(theirs, names, used)),
        tuple(name for name in shared if name not in seen),
        int((~fresh).sum()),
        int((fresh & ~of_shared).sum()),
        used,
    )


def _indexed(
    named: NamedPredictions, names: Sequence[str], used: "NDArray[np.bool_]"
) -> Predictions:
    """Some predictions, with classes as indices of the names."""
    import numpy as np

    place = {name: index for index, name in enumerate(names)}

    def indices(values: Iterable[Any]) -> "NDArray[np.int64]":
        return np.array([place[value] for value in values], np.int64)

    return Predictions(
        indices(named.labels[used]),
        indices(named.predicted[used]),
        named.confidence[used],
        named.likelihood[used],
    )
