"""What `validate` has found of each image that decodes, by its SHA-256, for steps that look again.

`findings.arrow` is in the output of `validate`, in order of the digests.
"""

from typing import get_type_hints

import pyarrow as pa

from models.image import ImageProperties
from tasks.data.fingerprint import THUMBNAIL

FILE = "findings.arrow"
_TYPES = {int: pa.int32(), bool: pa.bool_(), str: pa.string(), str | None: pa.string()}
PROPERTIES = {name: _TYPES[kind] for name, kind in get_type_hints(ImageProperties).items()}
FINDINGS = pa.schema(
    {
        "sha256": pa.string(),  # hex, of the encoded image
        **PROPERTIES,
        "brightness": pa.float64(),  # as `tasks.data.image_facts.light`
        "contrast": pa.float64(),
        "pixels": pa.string(),  # its identity, as `tasks.data.pixels.digest`
        "fingerprint": pa.int64(),
        "thumbnail": pa.binary(THUMBNAIL),
    }
)
