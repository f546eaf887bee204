"""Every image classifier of `transformers`: pretrained, or from a config with random weights.

The architectures are those of `AutoModelForImageClassification`: ResNet, ConvNeXt, Swin, BEiT,
DeiT, DINOv2, MobileNetV2 and more. Whether one takes images of `images.size` is tried with tensors
that have shapes but no memory.

A pretrained network keeps its weights but for the last layer, its own dropout, and the mean and the
standard deviation of its image processor (0.5 without one). Nothing else of the processor counts:
the project prepares the images, as `images` says. For images of another size than it was made for,
learned position embeddings are interpolated once (bicubic, as `transformers` does); convolutions
take any size; a network whose other weights depend on the size is refused.

Batch norms see the images that go through the network at once: a worker's own, and of these only
`train.micro_batch`. The statistics that are kept, and evaluated, are the first worker's.
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models import fine_tuned, pretrained
from models.cost import MOST_PARAMETERS, ConvolutionalNetwork, Transformer, cost_of

if TYPE_CHECKING:
    from torch import Tensor

    from models.network import Network

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

# Keys of a config that the images decide.
DECIDED = ("id2label", "image_size", "label2id", "num_channels", "num_labels")
# Of a published config: about its last layer, or about a use that is not this one.
NOT_TAKEN = ("dtype", "id2label", "label2id", "num_labels", "output_attentions",
             "output_hidden_states", "problem_type", "return_dict", "torch_dtype")  # fmt: skip
# More of its parameters must not be missing from the files of a pretrained network.
MOST_MISSING = 0.1


class Settings(BaseModel):
    """A network's settings in `params.yaml`; exactly one of `pretrained` and `config` is given.

    Attributes:
        pretrained: A model on the Hugging Face hub, `owner/name` or `owner/name@revision`, or a
            folder that holds one; a relative path is below the project. Its last layer is replaced.
        pretrained_version: The commit on the hub, or the digest of the folder's files. It is found
            when a workload is read; if it is given, no other version is used.
        config: Of a network with random weights: `model_type`, and any parameter of that type's
            config class in `transformers`, dropout too: `{model_type: resnet, depths: [2, 2]}`.
            The images decide the size, the channels and the number of classes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")] | None = None
    config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> "Settings":
        if self.pretrained is None and self.config is None:
            raise ValueError(
                "config: missing; give it, or model.pretrained. An example is "
                "{model_type: resnet, depths: [2, 2, 2, 2]}"
            )
        if self.pretrained is not None and self.config is not None:
            raise ValueError(
                "pretrained: brings its own config: leave out config (--set model.config=)"
            )
        if self.pretrained is None and self.pretrained_version is not None:
            raise ValueError("pretrained_version: is of no use without model.pretrained")
        if self.config is not None:
            if not isinstance(self.config.get("model_type"), str):
                raise ValueError("config: needs a model_type, such as resnet")
            if decided := [name for name in DECIDED if name in self.config]:
                raise ValueError(f"config: leave out {', '.join(decided)}: the images decide")
            try:
                json.dumps(self.config, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"config: {error}; write it as text or a number") from None
        return self


@dataclass(frozen=True)
class _Start:
    """What a network is made from.

    Attributes:
        place: Of it in the settings, for messages.
        kind: The class of the classifier, of `transformers`.
        config: As published, or as in the settings.
    """

    place: str
    kind: Any
    config: Mapping[str, Any]

    @property
    def type(self) -> str:
        return str(self.config["model_type"])


@dataclass(frozen=True)
class _Fit:
    """What is special about some of a network's parameters.

    Attributes:
        idle: The names of those that no gradient reaches.
        last: Of those that depend on the number of classes.
        grids: By name, those that depend on the size of the images: how many position embeddings
            are not of patches, and the sides of the grid of patches before and now.
    """

    idle: frozenset[str]
    last: frozenset[str]
    grids: Mapping[str, tuple[int, int, int]]


def faults(settings: Settings, shape: tuple[int, int, int]) -> list[str]:
    """Finds a network that is far too large; the rest only `transformers` knows: `library_faults`.

    Args:
        settings: Of the network.
        shape: Height, width and channels of the images.

    Returns:
        A sentence for each fault.
    """
    cost = cost_of(settings.config) if settings.config is not None else None
    if cost is not None and cost.parameters(shape, classes=0) > MOST_PARAMETERS:
        return ["model.config makes more than 10^12 parameters."]
    return []


def pretrained_version(settings: Settings, root: Path) -> str | None:
    """The version of the pretrained weights; None without any, or if it is not known.

    Args:
        settings: Of the network.
        root: Where a relative path starts.
    """
    return pretrained.version(settings.pretrained, settings.pretrained_version, root)


def pretrained_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds faults of the pretrained weights that are known without `transformers`.

    Args:
        settings: Of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    name = settings.pretrained
    if name is not None:
        yield from pretrained.faults(
            name, settings.pretrained_version, root, lambda config: _check_type(name, config)
        )


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds faults of the config, or of that of the pretrained network if it is on this machine.

    The network is tried without memory, which takes seconds with the import of torch.

    Args:
        settings: Of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    name, version = settings.pretrained, settings.pretrained_version
    try:
        with fine_tuned.quiet():
            if name is None:
                _check_written(_written(settings), shape)
            elif version and (config := pretrained.read_config(name, version, root)):
                _check_pretrained(_published(name, config), shape)
    except ValueError as error:
        yield str(error)


def sized(settings: Settings, root: Path) -> Settings | None:
    """The settings with the config of the pretrained network; None if its cost is not known.

    Args:
        settings: Of the network, with the version of the weights.
        root: Where a relative path starts.
    """
    config = settings.config
    if settings.pretrained is not None:
        if settings.pretrained_version is None:
            return None
        config = pretrained.read_config(settings.pretrained, settings.pretrained_version, root)
    if config is None or "model_type" not in config or cost_of(config) is None:
        return None
    return Settings(config={name: each for name, each in config.items() if name not in DECIDED})


def parameters(settings: Settings, shape: tuple[int, int, int], classes: int) -> int:
    """The number of parameters, nearly.

    Args:
        settings: Of the network, as `sized` gave them.
        shape: Height, width and channels of the images.
        classes: How many there are.
    """
    return _cost(settings).parameters(shape, classes)


def flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """The cost of a forward pass over one image, counting only the large products.

    Args:
        settings: Of the network; one that is pretrained, and one whose architecture has no formula
            here, counts as infinitely large.
        shape: Height, width and channels of the images.

    Returns:
        Floating-point operations; a multiplication with its addition is two.
    """
    cost = cost_of(settings.config) if settings.config is not None else None
    return float("inf") if cost is None else cost.flops(shape)


def activations(
    settings: Settings, shape: tuple[int, int, int], device: str, precision: str
) -> float:
    """Memory of one image in a training step: what the backward pass needs, and its peak.

    Args:
        settings: Of the network, as `sized` gave them.
        shape: Height, width and channels of the images.
        device: `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Returns:
        Bytes.
    """
    return _cost(settings).activations(shape, device, precision)


def build(settings: Settings, shape: tuple[int, int, int], classes: int) -> "Network":
    """Makes a new network, with random weights or pretrained ones.

    Parameters that no gradient reaches, such as a mask token, are not trained.

    Args:
        settings: Of the network.
        shape: Height (= width), width and channels of the images.
        classes: How many there are.

    Raises:
        ValueError: The settings do not fit the images, or there is no such pretrained model.
        OSError: The hub cannot be reached.
    """
    from models.network import wrap

    mean: Sequence[float] = fine_tuned.HALF * shape[2]
    std = mean
    if settings.pretrained is None:
        with fine_tuned.quiet():
            start = _written(settings)
            idle = _check_written(start, shape)
            classifier = start.kind(_config(start, shape, classes))
    else:
        from transformers import PreTrainedConfig

        with fine_tuned.loading(settings.pretrained, settings.pretrained_version) as where:
            config, _ = PreTrainedConfig.get_config_dict(**where)
            start = _published(settings.pretrained, config)
            fit = _check_pretrained(start, shape)
            weights = _load(start, where, fit.last)
            mean, std = fine_tuned.normalisation(where, shape[2])
            classifier = start.kind(_config(start, shape, classes))
        _take_over(weights, classifier, fit, start.place)
        idle = fit.idle
    for name, parameter in classifier.named_parameters():
        parameter.requires_grad_(name not in idle)
    return wrap(classifier, mean, std, architectures=[start.kind.__name__])


def rebuild(description: Mapping[str, Any]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded."""
    from models.network import wrap

    config = description["config"]
    [architecture] = config["architectures"]
    kind = _classes(config)[architecture]
    with fine_tuned.quiet():
        classifier = kind(kind.config_class.from_dict(dict(config)))
    return wrap(classifier, description["mean"], description["std"], architectures=[architecture])


def _classes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The image classifiers of a `model_type`, by name; none, if it has none."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES,
    )

    names = NAMES.get(config.get("model_type"), ())
    names = (names,) if isinstance(names, str) else names
    return {name: getattr(transformers, name) for name in names}


def _check_type(name: str, config: Mapping[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"model.pretrained: {name} is a model without a type.")


def _published(name: str, config: Mapping[str, Any]) -> _Start:
    """What a pretrained network is made from.

    Raises:
        ValueError: It is none that classifies images.
    """
    _check_type(name, config)
    classes, place = _classes(config), f"model.pretrained: {name}"
    if not classes:
        raise ValueError(
            f"{place} is a {config['model_type']}, which transformers has no image classifier for."
        )
    own = [each for each in config.get("architectures") or () if each in classes]
    kept = {key: value for key, value in config.items() if key not in NOT_TAKEN}
    return _Start(place, classes[own[0] if own else next(iter(classes))], kept)


def _written(settings: Settings) -> _Start:
    """What a network with random weights is made from.

    Raises:
        ValueError: There is no such type, or it has no such parameter.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES,
    )

    assert settings.config is not None
    classes, kind = _classes(settings.config), settings.config["model_type"]
    if not classes:
        raise ValueError(
            f"model.config.model_type: no image classifier {kind!r} in transformers."
            f"{_hint(kind, NAMES)}"
        )
    chosen = next(iter(classes.values()))
    _check_keys("model.config", settings.config, chosen.config_class)
    return _Start("model.config", chosen, settings.config)


def _check_keys(place: str, config: Mapping[str, Any], kind: Any) -> None:
    """Refuses keys that `transformers` would not use, and those that the images decide.

    Args:
        place: Of the config in the settings.
        config: As in the settings.
        kind: Its class.
    """
    from transformers import PreTrainedConfig

    decided = {*DECIDED, *(field.name for field in fields(PreTrainedConfig))}
    own = {field.name for field in fields(kind) if not field.name.startswith("_")} - decided
    for name in config.keys() - own - {"model_type"}:
        if name in decided:
            raise ValueError(f"{place}.{name}: leave it out, it is decided for you.")
        raise ValueError(
            f"{place}.{name}: {kind.model_type} has no such parameter.{_hint(name, own)}"
        )
    for name, inner in kind.sub_configs.items():
        if isinstance(config.get(name), Mapping) and is_dataclass(inner):
            _check_keys(f"{place}.{name}", config[name], inner)


def _hint(name: str, known: Collection[str]) -> str:
    """The second sentence of a message that refuses a name: the closest known name, or all."""
    close = get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" There are: {', '.join(sorted(known))}."


def _config(start: _Start, shape: tuple[int, int, int] | None, classes: int) -> Any:
    """A config of `transformers`.

    Args:
        start: What it is made from.
        shape: Height, width and channels of the images; its own sizes if None.
        classes: How many there are.

    Raises:
        ValueError: A value is wrong.
    """
    from huggingface_hub.errors import StrictDataclassError

    try:
        config = start.kind.config_class.from_dict(dict(start.config) | {"num_labels": classes})
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{start.place}: {_first_line(error)}") from error
    if shape is not None:
        vision, size = _vision(config), shape[0]
        if hasattr(vision, "image_size"):
            vision.image_size = size if isinstance(vision.image_size, int) else [size, size]
        if hasattr(vision, "num_channels"):
            vision.num_channels = shape[2]
    return config


def _vision(config: Any) -> Any:
    """The part of a config that is about images; that of CLIP has another one about text."""
    return getattr(config, "vision_config", config)


def _check_written(start: _Start, shape: tuple[int, int, int]) -> frozenset[str]:
    """Checks a network with random weights; the names of the parameters no gradient reaches.

    Raises:
        ValueError: It does not take the images, or a value of its config is wrong.
    """
    return _idle(_try(start, shape, f"a network of type {start.type} with these sizes"))


def _check_pretrained(start: _Start, shape: tuple[int, int, int]) -> _Fit:
    """Checks a pretrained network.

    Raises:
        ValueError: It does not take the images, or a value of its config is wrong.
    """
    own = _config(start, None, 2)
    channels = getattr(_vision(own), "num_channels", 3)
    if channels != shape[2]:
        raise ValueError(
            f"{start.place} takes images of {channels} channels, but images.channels is {shape[2]}."
        )
    what, size = f"this {start.type}", getattr(_vision(own), "image_size", None)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        what += f", made for {height} x {width} pixels,"
    network = _try(start, shape, what)
    before = _shapes(_without_memory(start, own))
    more_classes = _shapes(_without_memory(start, _config(start, None, 3)))
    grids: dict[str, tuple[int, int, int]] = {}
    for name, now in _shapes(network).items():
        if now == before[name]:
            continue
        grid = _grid(name, before[name], now)
        if grid is None:
            raise ValueError(
                f"{start.place}: {what} cannot take images of {shape[0]} x {shape[1]} pixels: its "
                f"{name} fits no other size. Set images.size={height}."
            )
        grids[name] = grid
    return _Fit(
        _idle(network),
        frozenset(name for name in before if before[name] != more_classes[name]),
        grids,
    )


def _idle(network: Any) -> frozenset[str]:
    """The parameters that a backward pass gave no gradient, by name."""
    return frozenset(name for name, each in network.named_parameters() if each.grad is None)


def _try(start: _Start, shape: tuple[int, int, int], what: str) -> Any:
    """Takes a training step on tensors that have a shape but no memory.

    Args:
        start: What the network is made from.
        shape: Height, width and channels of the images.
        what: The network, for the message.

    Returns:
        The network, for two classes, with gradients.

    Raises:
        ValueError: It does not take such images, or a value of its config is wrong.
    """
    import torch

    config = _config(start, shape, 2)
    vision = _vision(config)
    patch = getattr(vision, "patch_size", None)
    if hasattr(vision, "image_size") and isinstance(patch, int) and patch > 0 and shape[0] % patch:
        raise ValueError(
            f"{start.place}: patch_size {patch} does not divide images.size {shape[0]}."
        )
    height, width, channels = shape
    try:
        network = _without_memory(start, config).train()
        logits = network(torch.zeros(2, channels, height, width, device="meta")).logits
        if logits.shape != (2, 2):
            raise ValueError(f"its output is of shape {tuple(logits.shape)}")
        logits.sum().backward()
    # Whatever the code of an architecture stumbles over.
    except Exception as error:
        raise ValueError(
            f"{start.place}: {what} cannot take images of {height} x {width} pixels and {channels} "
            f"channels ({_first_line(error)})."
        ) from error
    return network


def _without_memory(start: _Start, config: Any) -> Any:
    """A classifier whose tensors have shapes, but no values."""
    import torch

    with torch.device("meta"):
        return start.kind(config)


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in network.named_parameters()}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]).removesuffix(".")[:200] or type(error).__name__


def _grid(name: str, before: tuple[int, ...], now: tuple[int, ...]) -> tuple[int, int, int] | None:
    """The grids of position embeddings, (…, tokens, width), of two sizes; see `_Fit`.

    Returns:
        None for other parameters.
    """
    if "position_embedding" not in name or before[-1] != now[-1]:
        return None
    for extra in range(3):  # none, the token of the class, that of distillation
        old, new = before[-2] - extra, now[-2] - extra
        if isqrt(old) ** 2 == old and isqrt(new) ** 2 == new:
            return extra, isqrt(old), isqrt(new)
    return None


def _load(start: _Start, where: Mapping[str, Any], last: frozenset[str]) -> dict[str, "Tensor"]:
    """The weights of a pretrained network, float32 and of its own sizes.

    Args:
        start: What it is made from.
        where: As `fine_tuned.loading` gives it.
        last: The parameters whose weights do not matter.

    Raises:
        ValueError: The files hold weights of another network.
    """
    import torch

    try:
        network, found = start.kind.from_pretrained(
            **where,
            config=_config(start, None, 2),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # of the last layer
            output_loading_info=True,
        )
    except RuntimeError as error:
        raise ValueError(f"{start.place}: {_first_line(error)}") from error
    sizes = {name: each.numel() for name, each in network.named_parameters()}
    missing = {*found["missing_keys"], *(each[0] for each in found["mismatched_keys"])}
    absent = sum(size for name, size in sizes.items() if name in missing - last)
    if absent > MOST_MISSING * sum(sizes.values()):
        raise ValueError(
            f"{start.place} is called a {start.type}, but its files hold other weights: they lack "
            f"{min(missing - last)}, for example."
        )
    weights: dict[str, Tensor] = network.state_dict()
    return weights


def _take_over(weights: Mapping[str, "Tensor"], classifier: Any, fit: _Fit, place: str) -> None:
    """Gives a network the pretrained weights, all but those of the last layer.

    Args:
        weights: Of the pretrained network.
        classifier: The network, with random weights.
        fit: Of both.
        place: Of the network in the settings, for the log.
    """
    own = classifier.state_dict()
    taken = {name: weights[name] for name in own.keys() - fit.last}
    for name, grid in fit.grids.items():
        taken[name] = _interpolate(weights[name], *grid)
    if fit.grids:
        _, old, new = next(iter(fit.grids.values()))
        logger.info(
            "%s: the position embeddings are interpolated from %d x %d to %d x %d patches.",
            place, old, old, new, new,
        )  # fmt: skip
    classifier.load_state_dict(own | taken)


def _interpolate(positions: "Tensor", extra: int, old: int, new: int) -> "Tensor":
    """Position embeddings for another number of patches.

    Args:
        positions: (…, extra + old², width).
        extra: Tokens before those of the patches.
        old: Side of the grid of patches.
        new: The same, afterwards.

    Returns:
        (…, extra + new², width).
    """
    import torch

    kept, patches = positions[..., :extra, :], positions[..., extra:, :]
    width = positions.shape[-1]
    image = patches.reshape(1, old, old, width).permute(0, 3, 1, 2)
    image = torch.nn.functional.interpolate(image, (new, new), mode="bicubic", align_corners=False)
    patches = image.permute(0, 2, 3, 1).reshape(*positions.shape[:-2], new * new, width)
    return torch.cat((kept, patches), dim=-2)


def _cost(settings: Settings) -> Transformer | ConvolutionalNetwork:
    assert settings.config is not None
    cost = cost_of(settings.config)
    assert cost is not None, "`sized` says None"
    return cost
