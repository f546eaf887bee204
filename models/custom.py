"""The family `custom`: a network that a function of the user's makes.

The function is called as `factory(num_classes=…, **arguments)`. It returns a `torch.nn.Module` that
takes float32 pixels (N, C, H, W), normalised with `mean` and `std`, and returns logits (N, classes)
or something that has them as `logits`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from models import user_code

if TYPE_CHECKING:
    from models.network import Network

KEY = "model.factory"
HALF = (0.5,)


class Settings(BaseModel):
    """The settings of a custom network.

    Attributes:
        factory: The function that makes it: `package.module:name`, below the project's folder.
        arguments: What it takes beside `num_classes`.
        mean: Of each channel, for pixels in [0, 1]; one value is for all.
        std: Of each channel; one value is for all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    factory: Annotated[str, Field(pattern=user_code.PATTERN, max_length=1000)]
    arguments: dict[str, Any] = {}
    mean: list[float] = list(HALF)
    std: list[Annotated[float, Field(gt=0)]] = list(HALF)


def flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """Infinite: nothing is known of the network before it is made."""
    return float("inf")


def faults(settings: Settings, shape: tuple[int, int, int]) -> list[str]:
    """A sentence for each setting that does not fit the images."""
    return [
        f"model.{name}: {len(values)} values for images of {shape[2]} channels."
        for name, values in (("mean", settings.mean), ("std", settings.std))
        if len(values) not in (1, shape[2])
    ]


def pretrained_version(settings: Settings, root: Path) -> str | None:
    """None: weights that the function loads are its own affair."""
    return None


def pretrained_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """None."""
    return iter(())


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """What is wrong with the function, or with the network that it makes."""
    classes = 2
    try:
        user_code.find(settings.factory, KEY, root)
        network = build(settings, shape, classes)
        _check_output(settings, network, shape, classes)
    except ValueError as error:
        yield str(error)


def sized(settings: Settings, root: Path) -> Settings | None:
    """None: the sizes are not known, so nothing is estimated."""
    return None


def build(settings: Settings, shape: tuple[int, int, int], classes: int) -> "Network":
    """Calls the function.

    Args:
        settings: Of the network.
        shape: Height, width and channels of the images.
        classes: How many there are.

    Raises:
        ValueError: It cannot be imported, fails, or returns no module.
    """
    from models.network import Network

    arguments = settings.arguments | {"num_classes": classes}
    config = {"factory": settings.factory, "arguments": arguments}
    return Network(_make(settings.factory, arguments), config, *normalisation(settings, shape[2]))


def normalisation(settings: Settings, channels: int) -> tuple[list[float], list[float]]:
    """The mean and the standard deviation of each channel."""
    mean, std = (
        each * channels if len(each) == 1 else each for each in (settings.mean, settings.std)
    )
    return mean, std


def rebuild(description: Mapping[str, Any]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded."""
    from models.network import Network

    config = description["config"]
    made = _make(config["factory"], config["arguments"])
    return Network(made, config, description["mean"], description["std"])


def _make(factory: str, arguments: Mapping[str, Any]) -> Any:
    import torch

    function = user_code.find(factory, KEY)
    try:
        made = function(**arguments)
    except Exception as error:
        raise ValueError(f"{KEY}: {factory} failed: {user_code.said_by(error)}.") from error
    if not isinstance(made, torch.nn.Module):
        raise ValueError(
            f"{KEY}: {factory} returned a {type(made).__name__}, not a torch.nn.Module."
        )
    return made


def _check_output(
    settings: Settings, network: "Network", shape: tuple[int, int, int], classes: int
) -> None:
    """Tries the network on a black image."""
    import torch

    try:
        with torch.inference_mode():
            found = tuple(network.eval()(torch.zeros((1, *shape), dtype=torch.uint8)).shape)
    except Exception as error:
        raise ValueError(
            f"{KEY}: the network of {settings.factory} failed on an image of "
            f"{shape[0]} x {shape[1]} pixels and {shape[2]} channels: {user_code.said_by(error)}."
        ) from error
    if found != (1, classes):
        raise ValueError(
            f"{KEY}: the network of {settings.factory} returns {found} for one image and {classes} "
            f"classes, not (1, {classes})."
        )
