"""Wraps an image classifier, so that it takes stored pixels and returns logits."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Fields of a `transformers` config about its origin, not about the network.
NOT_KEPT = (
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "transformers_version",
)


class Network(nn.Module):
    """An image classifier that takes images as they are stored.

    Attributes:
        description: All that `rebuild` needs, except for the weights and the files.
        files: The files that it is made with, beside the weights, by the names to save them under.
        temperature: What the logits are divided by, before they become probabilities; it was found
            after the training, so that the probabilities say how often the network is right.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        classifier: nn.Module,
        config: Mapping[str, Any],
        mean: Sequence[float],
        std: Sequence[float],
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """Wraps a classifier.

        Args:
            classifier: Takes float32 (N, C, H, W), and returns logits (N, classes) or something
                that has them as `logits`.
            config: All that rebuilds the classifier, except for its weights; JSON-able.
            mean: The mean of each channel; subtracted from pixels in [0, 1].
            std: The standard deviation of each channel; the difference is divided by it.
            files: The files that it is made with, by the names to save them under; None for none.
        """
        super().__init__()
        self.classifier = classifier
        self.description: dict[str, Any] = {
            "config": dict(config),
            "mean": list(mean),
            "std": list(std),
        }
        self.files = dict(files or {})
        self.temperature = 1.0
        self.register_buffer("mean", in_stored_units(mean), persistent=False)
        self.register_buffer("std", in_stored_units(std), persistent=False)

    def prefer_attention(self, device: str, precision: str) -> str | None:
        """Chooses the implementation of the attention that trains fastest.

        On CPUs, PyTorch's fused attention has a slow backward pass in bfloat16: a ViT 192 x 6 with
        65 tokens trained 1.7 times as fast with the plain matrix products. In fp32 they are equal.

        Args:
            device: `cpu` or `cuda`.
            precision: `fp32` or `bf16`.

        Returns:
            Its name in `transformers`; None for a network that has no choice.
        """
        has_choice = (part for part in self.modules() if hasattr(part, "set_attn_implementation"))
        network: Any = next(has_choice, None)
        if network is None:
            return None
        try:
            network.set_attn_implementation("sdpa")
        except ValueError:  # it has no attention, or one of its own
            return None
        if (device, precision) != ("cpu", "bf16"):
            return "sdpa"
        network.set_attn_implementation("eager")
        return "eager"

    @property
    def backbone(self) -> nn.Module:
        """All but the last layer: the first part of a classifier of `transformers`."""
        return next(self.classifier.children())

    @property
    def last_layer(self) -> nn.Module | None:
        """What takes the features of an image: the last part of a classifier of `transformers`.

        None for any other network: nothing is known of its parts.
        """
        parts = list(self.classifier.children())
        has_parts = hasattr(self.classifier, "base_model_prefix") and len(parts) > 1
        return parts[-1] if has_parts else None

    def layers(self) -> list[nn.Module]:
        """The layers of the backbone; in a network with stages, these; none if it has no list."""
        lists = (
            module for module in self.classifier.modules() if isinstance(module, nn.ModuleList)
        )
        return list(next(lists, ()))

    def forward(self, images: Tensor) -> Tensor:
        """Classifies images.

        Args:
            images: uint8 (N, H, W, C); or what a head on embeddings takes, float32 (N, D).

        Returns:
            Logits, float32 (N, classes).
        """
        is_embedded = images.ndim == 2
        output = self.classifier(images if is_embedded else normalise(images, self.mean, self.std))
        logits: Tensor = getattr(output, "logits", output)
        return logits.float()

    def probabilities(self, images: Tensor, precision: str) -> Tensor:
        """The probability of each class, for evaluation and for serving.

        Args:
            images: uint8 (N, H, W, C), on the network's device.
            precision: `fp32` or `bf16`, of the matrix products.

        Returns:
            float32 (N, classes).
        """
        with inference(images.device, precision):
            return torch.softmax(self(images).float() / self.temperature, dim=1)


class Probabilities(nn.Module):
    """A network with the last part of `Network.probabilities`, for programs of others."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """The probability of each class: float32 (N, classes), of uint8 images (N, H, W, C)."""
        return torch.softmax(self.network(images) / self.network.temperature, dim=1)


class FeatureExtractor:
    """A network whose features are read while it answers; threads may share it."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._taken = threading.local()
        if (last := network.last_layer) is not None:
            last.register_forward_pre_hook(self._take)

    def answer(self, images: Tensor, precision: str) -> tuple[Tensor, Tensor | None]:
        """The probability of each class, and what the last layer calculates them from.

        Args:
            images: uint8 (N, H, W, C), on the network's device.
            precision: `fp32` or `bf16`, of the matrix products.

        Returns:
            The probabilities, float32 (N, classes); and the features, float32 (N, D), or None for
            a network whose last layer is not known.
        """
        self._taken.features = None
        probabilities = self._network.probabilities(images, precision)
        features: Tensor | None = self._taken.features
        return probabilities, None if features is None else features.flatten(1).float()

    def _take(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._taken.features = inputs[0]


@contextmanager
def inference(device: torch.device, precision: str) -> Iterator[None]:
    """Calculates without gradients, as evaluation and serving do.

    Args:
        device: The device of the network.
        precision: `fp32` or `bf16`, of the matrix products.
    """
    bf16 = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with torch.inference_mode(), bf16:
        yield


def in_stored_units(values: Sequence[float]) -> Tensor:
    """Values for pixels in [0, 1] for stored pixels, so that scaling them costs no extra pass.

    Args:
        values: One for each channel.

    Returns:
        float32 (C, 1, 1).
    """
    return 255 * torch.tensor(values).view(-1, 1, 1)


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Pixels as a classifier takes them.

    Args:
        images: uint8 (N, H, W, C).
        mean: The mean of each channel, as `in_stored_units` gives it.
        std: The standard deviation of each channel, as `in_stored_units` gives it.

    Returns:
        float32 (N, C, H, W).
    """
    return (images.permute(0, 3, 1, 2) - mean) / std


def config_of(network: Any) -> dict[str, Any]:
    """What makes a network of `transformers` again, except for its weights."""
    config: dict[str, Any] = network.config.to_diff_dict()
    return {name: value for name, value in config.items() if name not in NOT_KEPT}


def wrap(classifier: Any, mean: Sequence[float], std: Sequence[float]) -> Network:
    """Wraps an image classifier of `transformers`, and describes it by its config."""
    extra = {"num_labels": classifier.num_labels, "architectures": [type(classifier).__name__]}
    return Network(classifier, config_of(classifier) | extra, mean, std)
