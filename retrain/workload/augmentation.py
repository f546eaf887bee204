"""The random changes of training images: the section `train.augment` of a workload."""

from typing import Annotated

from pydantic import Field

from retrain.workload.section import Fraction, Section


class ColorJitter(Section):
    """By how much the colours of an image change at most."""

    brightness: Fraction = Field(
        default=0.0,
        description="The brightness is multiplied by a factor from 1 less this to 1 plus this.",
    )
    contrast: Fraction = Field(
        default=0.0,
        description="The contrast is multiplied by a factor from 1 less this to 1 plus this.",
    )
    saturation: Fraction = Field(
        default=0.0,
        description="The saturation is multiplied by a factor from 1 less this to 1 plus this.",
    )
    hue: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="The colours turn by up to this part of the colour wheel, in both directions.",
    )


class RandAugment(Section):
    """Changes drawn from a list of 14 (Cubuk et al., 2020), for a worker's batch at once."""

    count: int = Field(
        default=2,
        ge=1,
        le=14,
        description="How many changes are made, one after the other.",
    )
    magnitude: int = Field(
        default=9,
        ge=1,
        le=29,
        description="How strong the changes are at most, on a scale that ends below 30.",
    )


class Augment(Section):
    """Random changes of the training images, drawn anew for each epoch; the crop comes first."""

    flip: bool = Field(
        default=False,
        description="Mirror half of the images left to right.",
    )
    shift: int = Field(
        default=0,
        ge=0,
        le=4096,
        description="Move by up to this many pixels in both directions, filling with the edge.",
    )
    crop: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description=(
            "Cut out a part and scale it to `images.size`: at least this share of the area, with "
            "sides of 3:4 to 4:3. 0.08 is usual for large images. It is cut out of the original "
            "where images are streamed, and else out of the prepared image with its "
            "`images.margin`."
        ),
    )
    color_jitter: ColorJitter | None = Field(
        default=None,
        description="How the colours change; they stay as they are when None.",
    )
    rand_augment: RandAugment | None = Field(
        default=None,
        description="How changes are drawn from a list; none are when None.",
    )
    erasing: Fraction = Field(
        default=0.0,
        description="How often a rectangle is blackened (Zhong et al., 2020).",
    )
    mixup: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description="Mix images and their labels by a share from Beta(mixup, mixup); 0.2 is usual.",
    )
    cutmix: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description=(
            "Replace a rectangle by one of another image, its area from Beta(cutmix, cutmix); 1 is "
            "usual. With both, each batch gets one of them."
        ),
    )

    @property
    def needs_color(self) -> bool:
        """Whether it changes what grey images do not have."""
        jitter = self.color_jitter
        return self.rand_augment is not None or bool(jitter and (jitter.saturation or jitter.hue))

    @property
    def by_kornia(self) -> bool:
        """Whether it makes changes that the library kornia makes."""
        return bool(self.color_jitter or self.rand_augment or self.erasing)
