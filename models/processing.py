"""Compares how a pretrained network's own image processor prepares images with how it is done here.

Of that processor only the values of pixels count: their order, scale and normalisation. A person
who is told what else it has can set `images` accordingly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from models import fine_tuned
from models.image import RESAMPLING

FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # as Pillow numbers them
STRETCHED = 384  # ConvNeXt's processor cuts nothing off images of this size and larger


def difference(name: str, version: str | None, images: Mapping[str, Any]) -> str | None:
    """What the image processor of a pretrained network would do otherwise, in one sentence.

    Args:
        name: Of the network in the settings; a relative path starts in the working directory.
        version: As `pretrained.find_version` returned it.
        images: `size` and `resize`, as the workload has them.

    Returns:
        None if there is nothing, or the processor cannot be read.
    """
    try:
        with fine_tuned.loading(name, version) as where:
            given = fine_tuned.processor(where)
    except (OSError, ValueError):  # the training will say so
        return None
    found = list(_differences(given, images))
    if not found:
        return None
    return (
        f"model.pretrained: the network's own image processor has {', '.join(found)}. Images are "
        "prepared as `images` says."
    )


def _differences(given: Mapping[str, Any], images: Mapping[str, Any]) -> Iterator[str]:
    if given.get("size") and given.get("do_resize", True):
        size, scaled, resize = _geometry(given)
        if size != images["size"]:
            yield f"size {size} (here {images['size']})"
        if resize != images["resize"]:
            yield f"resize {resize} (here {images['resize']})"
        if scaled != size:
            yield f"the middle {size} of {scaled} pixels (here all)"
    resample = given.get("resample")
    if resample is not None and FILTERS[resample] != RESAMPLING:
        yield f"{FILTERS[resample]} resampling (here {RESAMPLING})"


def _geometry(given: Mapping[str, Any]) -> tuple[int, int, str]:
    """The side of an image, the side that it is scaled to before the rest is cut off, and how."""
    size = given["size"]
    sides = size if isinstance(size, Mapping) else {}
    cut = given.get("crop_size") if given.get("do_center_crop") else None
    scaled = int(sides.get("shortest_edge") or sides.get("height") or size)
    share = given.get("crop_pct")
    if share and scaled < STRETCHED:
        return scaled, int(scaled / share), "crop"
    # A single number is the shorter side where something is cut off.
    proportional = "shortest_edge" in sides or (not sides and cut)
    resize = "crop" if proportional and not share else "stretch"
    if cut:
        return int(cut["height"] if isinstance(cut, Mapping) else cut), scaled, resize
    return scaled, scaled, resize
