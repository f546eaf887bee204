"""What the sections of a workload share, and those about its images: data, checks, preparation."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from retrain.errors import has_login, refused

Fraction = Annotated[float, Field(ge=0, lt=1)]
# Text that names a file, a column or a class; control characters in it are a mistake.
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
# The longest side that a JPEG can have.
Side = Annotated[int, Field(ge=1, le=65_535)]
BatchSize = Annotated[int, Field(ge=1, le=1 << 20)]
NEAR_DUPLICATES = "near_duplicates"  # as `data.group`
# YAML has lists; a tuple cannot be changed.
AS_TUPLE = BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
Names = Annotated[tuple[str, ...], AS_TUPLE]


class Section(BaseModel):
    """A part of a workload: frozen, no unknown keys, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Split(Section):
    """The fractions of the images for splits that the data does not have.

    An image's pixels decide its split, so that it stays there when the data grows.
    """

    val: Fraction = Field(default=0.1, description="The fraction for the choice of the best epoch.")
    test: Fraction = Field(default=0.2, description="The fraction that the gate decides by.")


class Data(Section):
    """The images and where they are."""

    path: Text = Field(
        description=(
            "A path under the project's `data/` (versioned by DVC); or any other folder, file or "
            "fsspec URL; or a data set on the Hugging Face hub (`format: hub`). A URL has no login "
            "in it (`retrain.errors`)."
        ),
    )
    format: Literal["auto", "parquet", "folders", "table", "hub"] = Field(
        default="auto",
        description=(
            "How the images are stored; `auto` recognises it. `folders` is a folder per class, "
            "with or without a folder per split above it; a `table` (CSV, TSV, JSONL) lists images "
            "with their classes."
        ),
    )
    configuration: Text | None = Field(
        default=None,
        description=(
            "Which of several data sets in one, as the card of a data set on the Hugging Face hub "
            "(`README.md`, here or there) names them, or without a card the name of its folder of "
            "Parquet files; the card's default, or the only one, when None."
        ),
    )
    image_column: Text | None = Field(
        default=None,
        description=(
            "The Parquet column with the image: a struct of `bytes` and `path`, or bytes; `image` "
            "or `img` when None. Of a table, the column with the image's path; `path`, "
            "`file_name`, `image_id` or the like when None."
        ),
    )
    label_column: Text | None = Field(
        default=None,
        description=(
            "The column with the class: a name, or an integer; `label` or `labels` when None, of a "
            "table also `class`, `breed` or the like."
        ),
    )
    label_names: Text | None = Field(
        default=None,
        description=(
            "A file of the data with the names of the classes: in each line the class as the data "
            "has it, such as `n01440764`, and after a space or tab its name; or a JSON object. The "
            "classes are named as the data has them when None."
        ),
    )
    split: Split = Split()
    group: Text | None = Field(
        default=None,
        description=(
            "Whose images stay in one split: the values of a column of one's own (of the Parquet "
            "files, or of a `metadata.csv`); what a regular expression with a group in parentheses "
            "finds in an image's name; or `near_duplicates`, images that look the same."
        ),
    )
    time: Text | None = Field(
        default=None,
        description=(
            "When an image was taken: a column, a regular expression, or `exif`. The newest images "
            "become test, those before them val."
        ),
    )

    def faults(self) -> Iterator[str]:
        """A sentence for each of the values that are valid alone but not together."""
        if self.path.strip() in ("", "."):
            yield "data.path: names no data; an example is data/digits."
        if has_login(self.path):
            yield refused("data.path")
        if self.split.val + self.split.test >= 1:
            yield "data.split: val and test together leave nothing to train on."
        for name, value in (("group", self.group), ("time", self.time)):
            if value is not None and is_pattern(value) and (fault := _fault_of_pattern(value)):
                yield f"data.{name}: {value} is {fault}"


class Checks(Section):
    """The conditions that the data must meet before a model is trained on it."""

    labels: Annotated[tuple[Text, ...], AS_TUPLE] | None = Field(
        default=None,
        description="The allowed classes; those of the training split when None.",
    )
    min_images_per_class: int = Field(
        default=10,
        ge=1,
        le=10**9,
        description="The fewest images of a class, over all splits.",
    )
    min_images_per_class_and_split: int = Field(
        default=1,
        ge=0,
        le=10**9,
        description=(
            "The fewest images of a class in each split. Splits that are made of the images' "
            "content are made so that they have it, where there are three times as many; 0 lets "
            "val lack a class."
        ),
    )
    min_side: Side = Field(
        default=8,
        description="The smallest shorter side, in pixels.",
    )
    max_side: Side = Field(
        default=20_000,
        description="The largest longer side, in pixels.",
    )
    max_bad_fraction: Fraction = Field(
        default=0.0,
        description="Bad images up to this fraction are set aside instead of stopping the run.",
    )
    near_duplicates: Literal["report", "bad"] = Field(
        default="report",
        description=(
            "What happens to an image of train or val that looks like one of a split held out from "
            "it, such as the same photo saved again: `report` counts and lists it, `bad` makes it "
            "a bad image."
        ),
    )


class Images(Section):
    """How images are prepared for the model."""

    size: int = Field(
        default=224,
        ge=1,
        le=4096,
        description="Height and width in pixels.",
    )
    channels: Literal[1, 3] = Field(
        default=3,
        description="The colour channels: 1 is grey, 3 is RGB.",
    )
    resize: Literal["crop", "stretch"] = Field(
        default="crop",
        description=(
            "`crop` scales the shorter side to `size` and cuts the centre out; `stretch` does not "
            "keep the proportions."
        ),
    )
    storage: Literal["pixels", "source"] = Field(
        default="pixels",
        description=(
            "How the training gets the images of its split: `pixels` stores them resized; with "
            "`source` nothing is stored, and Ray Data decodes them from the data while the network "
            "trains. The other splits are always stored as pixels."
        ),
    )
    margin: int = Field(
        default=0,
        ge=0,
        le=4096,
        description=(
            "The images of the training split are stored larger by this many pixels in height and "
            "width, for `train.augment.crop` to cut from."
        ),
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image as a network gets it."""
        return self.size, self.size, self.channels


def is_pattern(value: str) -> bool:
    """Whether a value of `data.group` or `data.time` is a regular expression, and no column."""
    return "(" in value


def _fault_of_pattern(pattern: str) -> str | None:
    """What is wrong with a regular expression for images' names; None if nothing is."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        return f"no regular expression: {error}."
    return None if groups else "a regular expression without a group in parentheses: (…)."
