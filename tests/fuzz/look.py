"""Loads images with Pillow, and as training does, in a process of its own.

    python -m tests.fuzz.look < names

Prints a JSON object: for each file that cannot be shown, the reason.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Reads names of files, one in each line."""
    from PIL import Image

    from models.image import to_array

    found = {}
    for name in sys.stdin.read().splitlines():
        try:
            with Image.open(name) as image:
                image.load()
            to_array(Path(name).read_bytes(), 16, 3, "crop")
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
