"""What the formats have in common that pack many images into each file."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain

from tasks.compute.ray_data import map_units
from tasks.data.raw_dataset import RawDataset, Unit

SECONDS_PER_FETCHED_BYTE = 10e-9  # from a remote store, at 100 MB/s


class PackedImages(RawDataset):
    """The images of files that have to be opened to know how many they hold."""

    @abstractmethod
    def parts_of(self, name: str) -> Iterable[Unit]:
        """The images of a file, in order, in small parts.

        Raises:
            ValueError: The file does not have the expected form.
        """

    def parts(self) -> Iterator[Unit]:
        """The images of all files; see `tasks.data.raw_dataset.Reader`.

        Files that are not here are opened in a plan of Ray Data, where that is worth it.
        """
        sizes = dict(self.image_files())
        if not self.files.missing(sizes):
            return chain.from_iterable(map(self.parts_of, sizes))
        parts = map_units(
            self._list_parts_of,
            [*sizes],
            seconds=sum(sizes.values()) * SECONDS_PER_FETCHED_BYTE,
            done=lambda name: None,
            reads=lambda name: [self.files.manifest],
        )
        return chain.from_iterable(parts)

    def _list_parts_of(self, name: str) -> list[Unit]:
        return list(self.parts_of(name))
