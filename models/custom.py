"""The family `custom`: a network that a function of the user's makes.

The function is called as `factory(num_classes=…, **arguments, **files)`, with the path of each of
the files. It returns a `torch.nn.Module` that takes float32 pixels (N, C, H, W), normalised with
`mean` and `std`, and returns logits (N, classes) or something that has them as `logits`.

A network that is loaded gets all its weights from where it was saved. So if the function has a
parameter `pretrained`, it is False then.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from models import user_code
from models.family import Family, Name, Shape
from models.pretrained import HALF, files_digest

if TYPE_CHECKING:
    from models.network import Network


class Settings(Family):
    """The settings of a custom network."""

    factory: Annotated[str, Field(pattern=user_code.PATTERN, max_length=1000)] = Field(
        description="The function that makes it: `package.module:name`, below the project's folder."
    )
    arguments: dict[str, Any] = Field(
        default={}, description="What the function takes beside `num_classes`."
    )
    files: dict[str, Name] = Field(
        default={},
        description=(
            "Files that the function reads, by the name of the argument that is the path; a "
            "relative path starts at the project's folder. A copy is saved with the network."
        ),
    )
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None,
        description="The digest of the files. It is found before a run.",
    )
    mean: list[float] = Field(
        default=list(HALF),
        description="Of each channel, for pixels in [0, 1]; one value is for all.",
    )
    std: list[Annotated[float, Field(gt=0)]] = Field(
        default=list(HALF), description="Standard deviation of each channel; one value is for all."
    )

    def faults(self, shape: Shape) -> list[str]:
        """A sentence for each setting that does not fit the images, or does not fit others."""
        messages = [
            f"model.{name}: {len(values)} values for images of {shape[2]} channels."
            for name, values in (("mean", self.mean), ("std", self.std))
            if len(values) not in (1, shape[2])
        ]
        twice = {"num_classes", "pretrained", *self.arguments} & self.files.keys()
        return messages + [f"model.files.{name}: is an argument already." for name in sorted(twice)]

    def find_version(self, root: Path) -> str | None:
        """The digest of the files; what else the function loads is its own affair."""
        return files_digest(self._find_files(root)) if self.files else self.pretrained_version

    def _find_files(self, root: Path) -> dict[str, Path]:
        """The paths of the files, by the names of the arguments.

        Raises:
            ValueError: One is missing, or they are not what they were when the run began.
        """
        paths = {name: (root / Path(path).expanduser()) for name, path in self.files.items()}
        for name, path in paths.items():
            if not path.is_file():
                raise ValueError(f"model.files.{name}: no file {self.files[name]}.")
        version = self.pretrained_version
        if version and files_digest(paths) != version:
            raise ValueError(
                f"model.files: their content is not model.pretrained_version {version}."
            )
        return paths

    def build(self, shape: tuple[int, ...], classes: int) -> "Network":
        """Makes a network by a call of the user's function.

        Raises:
            ValueError: The function cannot be imported, fails, or returns no module; or its files
                have changed.
        """
        from models.custom_network import make

        paths = self._find_files(Path().absolute())
        stored = {name: f"{name}{path.suffix}" for name, path in paths.items()}
        config = {
            "factory": self.factory,
            "arguments": self.arguments | {"num_classes": classes},
            "files": stored,
        }
        mean, std = (
            values * shape[2] if len(values) == 1 else values for values in (self.mean, self.std)
        )
        saved = {stored[name]: path for name, path in paths.items()}
        return make(config, mean, std, saved, loaded=False)
