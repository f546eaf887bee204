"""What the sections of a workload share: their base class, and the types of their parameters."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
# Text that names a file, a column or a class; control characters in it are a mistake.
Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]
# The longest side that a JPEG can have.
Side = Annotated[int, Field(ge=1, le=65_535)]
BatchSize = Annotated[int, Field(ge=1, le=1 << 20)]
# YAML has lists; a tuple cannot be changed.
AS_TUPLE = BeforeValidator(lambda value: tuple(value) if type(value) is list else value)
Names = Annotated[tuple[str, ...], AS_TUPLE]


class Section(BaseModel):
    """A part of a workload: frozen, no unknown keys, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
