"""Gives images of class folders other labels: they are moved to the folder of the class.

Nothing is written over: an image whose name another one has there gets a part of its SHA-256 into
its name. So after a kill it can be told which images were moved.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrain import atomic
from retrain.digests import sha256_of
from retrain.errors import UsageError
from tasks.data.class_folders import Images
from tasks.data.review_list import IMAGES
from tasks.labels.corrections import Correction

NEW_SPLIT = "train"  # of new images, where the data has folders for splits


@dataclass(frozen=True)
class Move:
    """An image that has to get to another place.

    Attributes:
        path: The name of the image in reports.
        source: Where it is.
        target: Where it has to be; nothing is there.
        before: Its class so far, as the data names it; None for a new image.
        after: Its class from now on.
    """

    path: str
    source: Path
    target: Path
    before: str | None
    after: str

    def apply(self) -> None:
        """Moves the image; a new one is copied."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self.before is not None:
            self.source.rename(self.target)
            return
        with atomic.replacing(self.target) as aside:
            shutil.copyfile(self.source, aside)


def plan(
    data: Images, corrections: Sequence[Correction], labels: Mapping[str, str], new: Path
) -> list[Move]:
    """What has to be moved; images that were moved already are left out.

    Args:
        data: The data.
        corrections: The labels of images.
        labels: The class folder of each label.
        new: The folder with the review lists, and their images.

    Raises:
        UsageError: An image has changed, or is gone.
    """
    has_splits = any(data.split_of(name) for name, _ in data.image_files())
    moves: list[Move] = []
    for correction in corrections:
        after = labels[correction.label]
        if correction.is_new:
            folder = f"{NEW_SPLIT}/{after}" if has_splits else after
            before, name = None, f"{folder}/{Path(correction.path).name}"
            source = next(new.glob(f"*{IMAGES}/{correction.sha256}*"), new / correction.sha256)
        else:
            source, before = data.root / correction.file, data.label_of(correction.file)
            parts = correction.file.split("/")
            name = "/".join([*parts[:has_splits], after, *parts[has_splits + 1 :]])
        if before == after:
            continue
        taken = {move.target for move in moves}
        if target := _target(source, data.root / name, correction, taken):
            moves.append(Move(correction.path, source, target, before, after))
    return moves


def _target(source: Path, wanted: Path, correction: Correction, taken: set[Path]) -> Path | None:
    """Where an image has to be; None if it is there.

    Raises:
        UsageError: It has changed, or is gone.
    """
    other = wanted.with_stem(f"{wanted.stem}-{correction.sha256[:8]}")
    is_here = source.is_file()
    if is_here and sha256_of(source) != correction.sha256:
        raise UsageError(f"{correction.path} has changed since it was listed: list it again.")
    if correction.is_new or not is_here:
        places = [place for place in (wanted, other) if place.is_file()]
        if any(sha256_of(place) == correction.sha256 for place in places):
            return None
    if not is_here:
        raise UsageError(f"{correction.path} is not where it was listed: {source} is gone.")
    return other if wanted.exists() or wanted in taken else wanted
