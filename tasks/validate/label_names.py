"""Names the classes, where the data calls them otherwise: `n01440764` is `tench`."""

import json
from collections import Counter
from pathlib import Path

from tasks.data.raw_dataset import RawImage


class LabelNames:
    """The names of the classes, as a file of the data has them; without one, as they are."""

    def __init__(self, root: Path, file: str | None) -> None:
        """Reads the names.

        Args:
            root: The folder of the data.
            file: The file in it: a JSON object, or lines of a class, white space and its name.

        Raises:
            ValueError: There is no such file, it is no list of names, or two classes have one name.
        """
        self._file, self._names = file, {}
        if file is None:
            return
        path = root / file
        if not (path.is_file() and path.resolve().is_relative_to(root.resolve())):
            raise ValueError(f"data.label_names: the data has no file {file}.")
        try:
            text = path.read_text(encoding="utf-8-sig").strip()
            pairs = [line.split(None, 1) for line in text.splitlines()]
            self._names = {
                str(label): str(name).strip()
                for label, name in (json.loads(text).items() if text[:1] == "{" else pairs)
            }
        except ValueError as error:
            raise ValueError(f"data.label_names: {file} is no list of names: {error}") from None
        name, count = next(iter(Counter(self._names.values()).most_common(1)), ("", 0))
        if count > 1:
            raise ValueError(f"data.label_names: {file} names {count} classes {name!r}.")

    def of(self, image: RawImage) -> str | None:
        """The name of an image's class.

        Raises:
            ValueError: The class has none.
        """
        if self._file is None or image.label is None:
            return image.label
        if image.label not in self._names:
            raise ValueError(
                f"data.label_names: {self._file} has no name for the class {image.label!r} of "
                f"{image.path}."
            )
        return self._names[image.label]
