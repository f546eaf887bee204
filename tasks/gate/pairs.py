"""Pairs the answers of two models, for the images on which the two can be compared."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retrain.step import Facts
from tasks.data.metrics import METRICS, Predictions, Tally, split_name
from tasks.data.predictions import NamedPredictions


@dataclass(frozen=True)
class Pairs:
    """The answers of two models for the same images, in the same order.

    Attributes:
        names: The classes: those of the images, then those that a model may answer besides.
        classes: The number of classes that the images have.
        challenger: The answers of the model that may be promoted.
        opponent: The answers of the model that it is compared with.
    """

    names: tuple[str, ...]
    classes: int
    challenger: Predictions
    opponent: Predictions

    @property
    def rows(self) -> int:
        """The number of images."""
        return len(self.challenger.labels)

    @property
    def swapped(self) -> "Pairs":
        """The pairs with the two models exchanged."""
        return Pairs(self.names, self.classes, self.opponent, self.challenger)

    def take(self, rows: NDArray[np.int64]) -> "Pairs":
        """The answers for some images, by their indices."""
        return Pairs(self.names, self.classes, self.challenger.take(rows), self.opponent.take(rows))

    def of_class(self, label: str) -> "Pairs":
        """The answers for the images of one class; none if no image has it."""
        classes = self.names[: self.classes]
        index = classes.index(label) if label in classes else -1
        return self.take(np.flatnonzero(self.challenger.labels == index))

    @property
    def only_one_correct(self) -> tuple[int, int]:
        """How many images only the challenger, and how many only the opponent, has right."""
        challenger, opponent = (
            answers.labels == answers.predicted for answers in (self.challenger, self.opponent)
        )
        return int((challenger & ~opponent).sum()), int((opponent & ~challenger).sum())

    def score(self, answers: Predictions, metric: str) -> float:
        """A metric of one of the two models, also one of a class."""
        kind, label = split_name(metric)
        tally = Tally(self.names, self.classes, answers)
        if label is None:
            return METRICS[kind](tally)
        return float(getattr(tally.of_classes, kind)[self.names.index(label)])


def pair(
    challenger: NamedPredictions, opponent: NamedPredictions, learnt: NDArray[np.uint64]
) -> tuple[Pairs, NDArray[np.bool_], Facts]:
    """Pairs the predictions of two models for the same images.

    Args:
        challenger: The predictions of the challenger.
        opponent: The predictions of the opponent.
        learnt: The images that are left out because a model was trained or validated on them, as
            `image_id` gives them.

    Returns:
        The answers for the images that were not left out, of which only the classes that these
        images have count in averages; bool (images,), which those are; and `images`, how many;
        `learnt`, how many were left out because a model was trained or validated on them;
        `other_classes`, how many because one of the models does not know their class; and
        `absent`, the classes that both know and that the images lack.
    """
    assert np.array_equal(challenger.images, opponent.images)
    shared = [name for name in challenger.known if name in opponent.known]
    fresh = ~np.isin(challenger.images, learnt)
    labels = challenger.rows["label"]
    of_shared = pc.is_in(labels, pa.array(shared, pa.string())).to_numpy()
    used = fresh & of_shared
    seen_classes = set(labels.filter(used).unique().to_pylist())
    present = [name for name in shared if name in seen_classes]
    names = tuple(dict.fromkeys((*present, *challenger.known, *opponent.known)))
    answers = (predictions.take(used).indexed(names) for predictions in (challenger, opponent))
    counts = {
        "images": int(used.sum()),
        "learnt": int((~fresh).sum()),
        "other_classes": int((fresh & ~of_shared).sum()),
        "absent": [name for name in shared if name not in seen_classes],
    }
    return Pairs(names, len(present), *answers), used, counts
