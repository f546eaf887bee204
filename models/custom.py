"""The family `custom`: a network that a function of the user's makes.

The function is called as `factory(num_classes=…, **arguments, **files)`, with the path of each of
the files. It returns a `torch.nn.Module` that takes float32 pixels (N, C, H, W), normalised with
`mean` and `std`, and returns logits (N, classes) or something that has them as `logits`.

A network that is loaded gets all its weights from where it was saved. So if the function has a
parameter `pretrained`, it is False then.
"""

from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from models import pretrained, user_code

if TYPE_CHECKING:
    from models.network import Network

KEY = "model.factory"
HALF = (0.5,)


class Settings(BaseModel):
    """The settings of a custom network."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    factory: Annotated[str, Field(pattern=user_code.PATTERN, max_length=1000)] = Field(
        description="The function that makes it: `package.module:name`, below the project's folder."
    )
    arguments: dict[str, Any] = Field(
        default={}, description="What the function takes beside `num_classes`."
    )
    files: dict[str, Annotated[str, Field(min_length=1, max_length=4096)]] = Field(
        default={},
        description=(
            "Files that the function reads, by the name of the argument that is the path; a "
            "relative path starts at the project's folder. A copy is saved with the network."
        ),
    )
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="The digest of the files. It is found when the workload is read.",
    )
    mean: list[float] = Field(
        default=list(HALF),
        description="Of each channel, for pixels in [0, 1]; one value is for all.",
    )
    std: list[Annotated[float, Field(gt=0)]] = Field(
        default=list(HALF), description="Standard deviation of each channel; one value is for all."
    )


def faults(settings: Settings, shape: tuple[int, int, int]) -> list[str]:
    """A sentence for each setting that does not fit the images, or does not fit other settings."""
    messages = [
        f"model.{name}: {len(values)} values for images of {shape[2]} channels."
        for name, values in (("mean", settings.mean), ("std", settings.std))
        if len(values) not in (1, shape[2])
    ]
    twice = {"num_classes", "pretrained", *settings.arguments} & settings.files.keys()
    return messages + [f"model.files.{name}: is an argument already." for name in sorted(twice)]


def pretrained_version(settings: Settings, root: Path) -> str | None:
    """The digest of the files; what else the function loads is its own affair."""
    if not settings.files or settings.pretrained_version:
        return settings.pretrained_version
    try:
        return pretrained.digest_of(_paths(settings, root))
    except OSError:
        return None  # `pretrained_faults` says why


def pretrained_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """A sentence for each file that is missing, or one if the content of the files has changed."""
    missing = [name for name, path in _paths(settings, root).items() if not path.is_file()]
    yield from (f"model.files.{name}: no file {settings.files[name]}." for name in missing)
    if not missing:
        try:
            files(settings, root)
        except (ValueError, OSError) as error:
            yield str(error)


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds no faults here, because the training begins with a try of the function."""
    return iter(())


def files(settings: Settings, root: Path) -> dict[str, Path]:
    """The paths of the files, by the names of the arguments.

    Args:
        settings: The settings of the network.
        root: Where a relative path starts.

    Raises:
        ValueError: Their content is not what it was when the workload was read.
        OSError: One cannot be read.
    """
    paths, version = _paths(settings, root), settings.pretrained_version
    if version and pretrained.digest_of(paths) != version:
        raise ValueError(f"model.files: their content is not model.pretrained_version {version}.")
    return paths


def _paths(settings: Settings, root: Path) -> dict[str, Path]:
    return {name: (root / Path(path).expanduser()) for name, path in settings.files.items()}


def build(settings: Settings, shape: tuple[int, ...], classes: int) -> "Network":
    """Makes a network by a call of the user's function.

    Args:
        settings: The settings of the network; relative paths start in the working directory.
        shape: Height, width and channels of the images.
        classes: The number of classes.

    Raises:
        ValueError: The function cannot be imported, fails, or returns no module; or its files have
            changed.
    """
    from models.network import Network

    paths = files(settings, Path().absolute())
    arguments = settings.arguments | {"num_classes": classes}
    stored = {name: f"{name}{path.suffix}" for name, path in paths.items()}
    config = {"factory": settings.factory, "arguments": arguments, "files": stored}
    classifier = _make(settings.factory, arguments | paths, loaded=False)
    saved = {stored[name]: path for name, path in paths.items()}
    mean, std = (
        values * shape[2] if len(values) == 1 else values
        for values in (settings.mean, settings.std)
    )
    return Network(classifier, config, mean, std, saved)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded.

    Raises:
        ValueError: The function cannot be imported, fails, or returns no module.
    """
    from models.network import Network

    config = description["config"]
    # Packages of older versions of this project have no files.
    paths = {name: files[stored] for name, stored in config.get("files", {}).items()}
    classifier = _make(config["factory"], config["arguments"] | paths, loaded=True)
    return Network(classifier, config, description["mean"], description["std"], files)


def _make(factory: str, arguments: Mapping[str, Any], *, loaded: bool) -> Any:
    import torch

    function = user_code.find(factory, KEY)
    if loaded and "pretrained" in {*arguments, *signature(function).parameters}:
        arguments = {**arguments, "pretrained": False}
    try:
        module = function(**arguments)
    except Exception as error:
        raise ValueError(f"{KEY}: {factory} failed: {user_code.said_by(error)}.") from error
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"{KEY}: {factory} returned a {type(module).__name__}, not a torch.nn.Module."
        )
    return module
