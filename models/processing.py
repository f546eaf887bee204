"""Compares how a pretrained network's own image processor prepares images with how it is done here.

Of that processor only the values of pixels count: their order, scale and normalisation. A person
who is told what else it has can set `images` accordingly.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from models import fine_tuned
from models.image import RESAMPLING


def difference(name: str, version: str | None, images: Mapping[str, Any]) -> str | None:
    """What the image processor of a pretrained network would do otherwise, in one sentence.

    Args:
        name: The name of the network in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `pretrained.find_version` returned it.
        images: `size` and `resize`, as the workload has them.

    Returns:
        The sentence; None if there is no difference, or the processor cannot be read.
    """
    try:
        with fine_tuned.loading(name, version) as where:
            processor = fine_tuned.image_processor(where)
    except (OSError, ValueError):  # the training will say so
        return None
    differences = list(_differences(processor, images)) if processor else []
    if not differences:
        return None
    return (
        f"model.pretrained: the network's own image processor has {', '.join(differences)}. Images "
        "are prepared as `images` says."
    )


def _differences(processor: Any, images: Mapping[str, Any]) -> Iterator[str]:
    """What differs in the size of an image, in what is cut off, and in the resampling."""
    from PIL.Image import Resampling

    if processor.do_resize:
        scaled = processor.size.shortest_edge or processor.size.height
        size = processor.crop_size.height if processor.do_center_crop else scaled
        resize = "crop" if processor.size.shortest_edge else "stretch"
        if size != images["size"]:
            yield f"size {size} (here {images['size']})"
        if resize != images["resize"]:
            yield f"resize {resize} (here {images['resize']})"
        if scaled != size:
            yield f"the middle {size} of {scaled} pixels (here all)"
        resampling = Resampling(processor.resample).name.lower()
        if resampling != RESAMPLING:
            yield f"{resampling} resampling (here {RESAMPLING})"
