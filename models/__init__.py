"""Networks that classify images: how they are made, saved, loaded and served.

- `families.py` lists the families; each has a module with its `Settings`, a `family.Family`, which
  make a network
- `pretrained.py` finds and loads pretrained networks, `backbone.py` those that give embeddings
- a module whose name ends in `_network`, one for each family, makes a network again that was
  saved: its `rebuild(description, files)` needs nothing but the description and the files of the
  network, by the names they are saved under
- `network.py` wraps a network; `image.py` and `serving.py` serve it

Only this file and those of the last two lines are in the package of a model.

A network is a `torch.nn.Module` that takes uint8 images (N, H, W, C) on its own device, normalises
them itself, and returns float32 logits (N, classes). Its `description` is a JSON-able mapping.
"""

import importlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from models.family import Family
    from models.network import Network

WEIGHTS = "model.safetensors"
MODEL = "model.json"
LABELS = "labels.json"
IMAGES = "images.json"
FILES = "files"  # the folder of those that the network is made with


@dataclass(frozen=True)
class Classifier:
    """A trained network, with the meaning of its inputs and outputs.

    Attributes:
        module: The network, on the CPU and in evaluation mode.
        labels: The class names, by index of the logits.
        images: The form of an image before training: `size`, `channels` and `resize`.
    """

    module: "Network"
    labels: tuple[str, ...]
    images: Mapping[str, Any]


def parse_settings(family: str, settings: Mapping[str, Any]) -> "Family":
    """The settings of a network, which build it.

    Args:
        family: A module of this package.
        settings: As that family's `Settings` declare them.
    """
    made: Family = importlib.import_module(f"models.{family}").Settings.model_validate(settings)
    return made


def build(
    family: str, settings: Mapping[str, Any], shape: tuple[int, ...], classes: int
) -> "Network":
    """Makes a new network; see `Family.build`."""
    return parse_settings(family, settings).build(shape, classes)


def modules_of(family: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that make a saved network again: its family's, and the user's that is named.

    Args:
        family: A module of this package.
        settings: Of the network, as in `params.yaml` or as `save` wrote them.
    """
    named = settings.get("factory")
    return (f"models.{family}_network", *((named.partition(":")[0],) if named else ()))


def save(
    module: "Network",
    folder: Path,
    *,
    family: str,
    settings: Mapping[str, Any],
    labels: Sequence[str],
    images: Mapping[str, Any],
) -> None:
    """Writes a network and all that `load` needs; the same weights give the same bytes.

    Args:
        module: The network.
        folder: Made if it does not exist.
        family: A module of this package.
        settings: The settings that the network was built with, for information.
        labels: The class names, by index of the logits.
        images: `size`, `channels` and `resize`.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous().cpu() for name, value in _weights_of(module).items()}
    save_file(weights, folder / WEIGHTS)
    for name, path in module.files.items():
        (folder / FILES).mkdir(exist_ok=True)
        shutil.copyfile(path, folder / FILES / name)
    model = {
        "family": family,
        "settings": dict(settings),
        "network": module.description,
        "temperature": module.temperature,
    }
    _write(folder / MODEL, model)
    _write(folder / LABELS, list(labels))
    _write(folder / IMAGES, dict(images))


def load(folder: Path) -> Classifier:
    """Reads a network that `save` wrote."""
    from safetensors.torch import load_model

    model = json.loads((folder / MODEL).read_text(encoding="utf-8"))
    files = {path.name: path for path in (folder / FILES).glob("*")}
    family = importlib.import_module(f"models.{model['family']}_network")
    module: Network = family.rebuild(model["network"], files)
    load_model(module, folder / WEIGHTS)
    module.temperature = model["temperature"]
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    images = json.loads((folder / IMAGES).read_text(encoding="utf-8"))
    return Classifier(module.eval(), tuple(labels), images)


def take_weights(
    network: "Network", folder: Path, labels: Sequence[str], make: Callable[[int], "Network"]
) -> None:
    """Gives a new network the weights of a saved one.

    What there is for each class, such as a row of the last layer, is taken by the class's name; for
    a class that the saved network does not know, it stays as it is.

    Args:
        network: The new network, which `build` made.
        folder: The folder of the saved network, which `save` wrote.
        labels: The class names of the new network.
        make: Makes such a network for a number of classes, by which one learns what there is for
            each class.

    Raises:
        ValueError: The saved network is another one.
    """
    import torch
    from safetensors.torch import load_file

    saved = load_file(folder / WEIGHTS)
    saved_labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    shared = [name for name in labels if name in saved_labels]
    rows, saved_rows = (
        [names.index(name) for name in shared] for names in (list(labels), saved_labels)
    )
    weights, wider = _weights_of(network), {}
    if list(labels) != saved_labels:
        with torch.random.fork_rng(devices=[]):
            wider = _weights_of(make(len(labels) + 1))
    for name, tensor in weights.items():
        saved_tensor = saved.get(name)
        shape = None if saved_tensor is None else tuple(saved_tensor.shape)
        per_class = name in wider and wider[name].shape != tensor.shape
        if per_class and shape == (len(saved_labels), *tensor.shape[1:]):
            tensor[rows] = saved_tensor[saved_rows]
        elif shape == tuple(tensor.shape):
            tensor.copy_(saved_tensor)
        else:
            raise ValueError(
                f"train.init: the champion is another network: its {name} is "
                f"{shape or 'missing'}, and not {tuple(tensor.shape)}. Leave train.init out to "
                "train a new one."
            )


def _weights_of(network: "Network") -> dict[str, Any]:
    """The tensors of a network that are saved, each under its first name if it has several."""
    first_names = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}
    return {name: value for name, value in network.state_dict().items() if name in first_names}


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
