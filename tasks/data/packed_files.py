"""What the formats have in common that pack many images into each file."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain

from tasks.data.raw_dataset import RawDataset, Unit


class PackedImages(RawDataset):
    """The images of files that have to be opened to know how many they hold."""

    @abstractmethod
    def parts_of(self, name: str) -> Iterable[Unit]:
        """The images of a file, in order, in small parts.

        Raises:
            ValueError: The file does not have the expected form.
        """

    def parts(self) -> Iterator[Unit]:
        """The images of all files; see `tasks.data.raw_dataset.Reader`."""
        sizes = dict(self.image_files())  # raises before a file is opened
        return chain.from_iterable(map(self.parts_of, sizes))
