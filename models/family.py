"""What a family of networks has: settings in `params.yaml`, and networks that are made of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from models.network import Network

Name = Annotated[str, Field(min_length=1, max_length=4096)]
Shape = tuple[int, int, int]


class Family(BaseModel):
    """The settings of a network, beside `family`; `Settings` in the module of each family.

    They are read, and their `faults` and FLOPs asked, without importing torch. The messages of
    their validators begin with the name of a setting and a colon. The `shape` of images is their
    height, width and channels; `root` is where a relative path starts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def faults(self, shape: Shape) -> list[str]:
        """A sentence for each setting that does not fit the images, or does not fit others."""
        return []

    def flops(self, shape: Shape) -> float:
        """The operations of a forward pass over one image.

        They decide the precision and the threads that are `auto`. A network whose sizes are not
        known counts as infinitely large.
        """
        return float("inf")

    def training_flops(self, shape: Shape) -> float:
        """The operations of a forward pass through the part that is trained."""
        return self.flops(shape)

    def find_version(self, root: Path) -> str | None:
        """Which weights the network starts from; None without any.

        Raises:
            ValueError: There are no such weights, or the hub does not answer; the message says why.
        """
        return None

    def check_network(self, shape: Shape, root: Path) -> None:
        """Checks that the network can be made and takes the images, in seconds.

        Its tensors have shapes but no values, so it needs no memory.

        Raises:
            ValueError: The network cannot be made, or does not take the images.
        """

    def build(self, shape: tuple[int, ...], classes: int) -> "Network":
        """Makes a new network; `torch.manual_seed` decides its weights.

        Args:
            shape: Height, width and channels of the images; or the length of their embeddings.
            classes: The number of classes.

        Raises:
            ValueError: The settings do not fit the images, or there is no such pretrained model.
            OSError: The hub cannot be reached.
        """
        raise NotImplementedError

    def complete(self, trained: "Network") -> "Network":
        """The network that is saved, from what `build` made and a training changed.

        Raises:
            ValueError: The rest of the network cannot be loaded.
            OSError: The hub cannot be reached.
        """
        return trained
