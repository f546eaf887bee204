"""Has a package classify images and tell their embeddings: what the last layer of it takes."""

from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.compute.ray_data import in_threads
from tasks.compute.served import Encoded, PackagePool, portions

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

E = TypeVar("E", bound=Encoded)


def observe(
    package: Path, images: Iterable[E], folder: Path
) -> "Generator[tuple[Sequence[E], pa.RecordBatch]]":
    """Classifies images with a package, a portion of them at a time.

    Args:
        package: A folder as `mlflow.pyfunc.save_model` writes it.
        images: Any number of images.
        folder: The folder in which the processes run.

    Yields:
        Images, in order, and the answers, as `PackageProcess.classify` gives them.

    Raises:
        ValueError: The package cannot be loaded, or does not answer.
    """

    def make(device: str) -> "Callable[[Sequence[E]], tuple[Sequence[E], pa.RecordBatch]]":
        pool = PackagePool(package, folder, device)
        return lambda some: (
            some,
            pool.classify([image.data for image in some], [True] * len(some)),
        )

    yield from in_threads(make, portions(images))


def embeddings_of(answers: "pa.RecordBatch", title: str) -> "NDArray[np.float32]":
    """The embeddings in some answers, none of which is an error.

    Args:
        answers: As `observe` gives them; at least one.
        title: The name of the version that answered, for people.

    Returns:
        float32 (images, D).

    Raises:
        ValueError: The package does not tell its embeddings.
    """
    features = answers["features"]
    if features.null_count:
        raise ValueError(
            f"{title} does not tell the embeddings of images, by which they are compared: only a "
            "network of transformers (the families vit, auto and embedding_head) does."
        )
    embeddings: NDArray[np.float32] = features.flatten().to_numpy().reshape(len(answers), -1)
    return embeddings


def probabilities_of(answers: "pa.RecordBatch") -> "NDArray[np.float32]":
    """The probabilities in some answers: float32 (images, classes of the package)."""
    found: NDArray[np.float32] = (
        answers["probabilities"].flatten().to_numpy().reshape(len(answers), -1)
    )
    return found
