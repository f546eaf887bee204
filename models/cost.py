"""What networks cost: parameters, operations and memory, by formula.

Precision and threads that are `auto` follow from it, and are then parameters of the training.
Nothing else that is trained does, so that a change here alone trains nothing again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

# Far above what one machine trains; sizes of tensors then still fit into 64 bits.
MOST_PARAMETERS = 10**12

# What a training keeps of a layer's output, in bytes for each number: the layer's own, and that of
# the normalisation or activation after it.
KEPT_BYTES = {"fp32": 8, "bf16": 5}

# The types that cost as a ViT does, nearly, with the patch size of `transformers`.
PATCHES = {
    "beit": 16, "clip": 32, "data2vec-vision": 16, "deit": 16, "dinov2": 14,
    "dinov2_with_registers": 16, "ijepa": 16, "siglip": 16, "vit": 16, "vit_msn": 16,
}  # fmt: skip

Sizes = Annotated[list[PositiveInt], Field(min_length=1, max_length=100)]


@dataclass(frozen=True)
class Transformer:
    """The sizes of a vision transformer (Dosovitskiy et al., 2021).

    Attributes:
        patch_size: Side of a patch in pixels.
        hidden_size: Width of a token's representation.
        layers: Transformer blocks.
        heads: Attention heads in each block.
        mlp_size: Width of a block's MLP.
        dropout: Of the blocks' outputs and of the attention.
    """

    patch_size: int
    hidden_size: int
    layers: int
    heads: int
    mlp_size: int
    dropout: float

    def parameters(self, shape: tuple[int, int, int], classes: int) -> int:
        """The number of parameters.

        Args:
            shape: Height, width and channels of the images.
            classes: How many there are.
        """
        patches, hidden, mlp = self._patches(shape), self.hidden_size, self.mlp_size
        patch = self.patch_size**2 * shape[2]
        embedding = (patch + 1) * hidden + (patches + 2) * hidden  # with the token of the class
        attention = 4 * (hidden + 1) * hidden
        block = attention + (hidden + 1) * mlp + (mlp + 1) * hidden + 4 * hidden
        return embedding + self.layers * block + 2 * hidden + (hidden + 1) * classes

    def lora_parameters(self, rank: int, classes: int) -> int:
        """How many parameters low-rank adapters and a new last layer have.

        Args:
            rank: Of the adapters; each linear layer of a block has one.
            classes: How many there are.
        """
        hidden, mlp = self.hidden_size, self.mlp_size
        block = rank * (4 * 2 * hidden + 2 * (hidden + mlp))
        return self.layers * block + (hidden + 1) * classes

    def flops(self, shape: tuple[int, int, int]) -> float:
        """The cost of a forward pass over one image, counting only the large matrix products.

        Args:
            shape: Height, width and channels of the images.

        Returns:
            Floating-point operations; a multiplication with its addition is two.
        """
        patches, hidden = self._patches(shape), self.hidden_size
        tokens = patches + 1
        block = tokens * hidden * (4 * hidden + 2 * self.mlp_size) + 2 * tokens**2 * hidden
        embedding = patches * self.patch_size**2 * shape[2] * hidden
        return 2.0 * (self.layers * block + embedding)

    def activations(self, shape: tuple[int, int, int], device: str, precision: str) -> float:
        """Memory of one image in a training step: what the backward pass needs, and its peak.

        The terms are those of Korthikanti et al. (2022), section 4.1, with the bytes that PyTorch
        keeps for each, in fp32 and under autocast to bf16. A bf16 training on a CPU, and one with
        dropout there, keeps the attention's weights too; elsewhere fused attention does not.

        Args:
            shape: Height, width and channels of the images.
            device: `cpu` or `cuda`.
            precision: `fp32` or `bf16`.

        Returns:
            Bytes.
        """
        tokens, hidden, mlp = self._patches(shape) + 1, self.hidden_size, self.mlp_size
        drops, bf16 = self.dropout > 0, precision == "bf16"
        kept = 24 * hidden + 4 * mlp if bf16 else 32 * hidden + 8 * mlp
        if drops:
            kept += hidden * (4 if bf16 else 8)
        weights = 0
        if device == "cpu" and (bf16 or drops):
            weights = (8 if drops else 6) if bf16 else 12
        scores = self.heads * tokens**2
        peak = 4 * tokens * max(2 * mlp, 4 * hidden) + (8 * scores if weights else 0)
        pixels = 13 * shape[0] * shape[1] * shape[2]  # uint8, and the steps of the normalisation
        return self.layers * (tokens * kept + weights * scores) + peak + pixels

    def _patches(self, shape: tuple[int, int, int]) -> int:
        return (shape[0] // self.patch_size) * (shape[1] // self.patch_size)


@dataclass(frozen=True)
class Convolution:
    """Equal layers of a network; a linear layer at each position is one with a kernel of 1.

    Attributes:
        inputs: Channels.
        outputs: Channels.
        kernel: Side in pixels.
        reduction: How many pixels of an image there are to one of the output, along a side.
        vectors: Parameters beside the kernel's for each output: biases, scales, of norms too.
        groups: Of channels that are convolved apart.
        count: How many such layers there are.
    """

    inputs: int
    outputs: int
    kernel: int
    reduction: int
    vectors: int
    groups: int = 1
    count: int = 1

    @property
    def weights(self) -> int:
        """Of the kernel."""
        return self.kernel**2 * self.inputs // self.groups * self.outputs

    def positions(self, shape: tuple[int, int, int]) -> int:
        """Pixels of the output."""
        return -(-shape[0] // self.reduction) * -(-shape[1] // self.reduction)


@dataclass(frozen=True)
class ConvolutionalNetwork:
    """The sizes of a convolutional network.

    Attributes:
        layers: Takes the channels of the images; gives the layers but the last.
        width: Channels that the last layer sees.
    """

    layers: Callable[[int], Iterator[Convolution]]
    width: int

    def parameters(self, shape: tuple[int, int, int], classes: int) -> int:
        """The number of parameters.

        Args:
            shape: Height, width and channels of the images.
            classes: How many there are.
        """
        own = sum(
            each.count * (each.weights + each.vectors * each.outputs)
            for each in self.layers(shape[2])
        )
        return own + (self.width + 1) * classes

    def lora_parameters(self, rank: int, classes: int) -> int:
        """How many parameters low-rank adapters and a new last layer have.

        Args:
            rank: Of the adapters; each layer with a kernel of 1 has one. Where these are no linear
                layers, as in a ResNet, a training with adapters is refused.
            classes: How many there are.
        """
        linear = [each for each in self.layers(3) if each.kernel == 1]
        adapters = sum(each.count * rank * (each.inputs + each.outputs) for each in linear)
        return adapters + (self.width + 1) * classes

    def flops(self, shape: tuple[int, int, int]) -> float:
        """The cost of a forward pass over one image, counting only the convolutions.

        Args:
            shape: Height, width and channels of the images.

        Returns:
            Floating-point operations; a multiplication with its addition is two.
        """
        layers = self.layers(shape[2])
        return 2.0 * sum(each.count * each.weights * each.positions(shape) for each in layers)

    def activations(self, shape: tuple[int, int, int], device: str, precision: str) -> float:
        """Memory of one image in a training step: what the backward pass needs, and its peak.

        Args:
            shape: Height, width and channels of the images.
            device: `cpu` or `cuda`; both keep the same.
            precision: `fp32` or `bf16`.

        Returns:
            Bytes.
        """
        sizes = [
            (each.count, each.outputs * each.positions(shape)) for each in self.layers(shape[2])
        ]
        kept = KEPT_BYTES[precision] * sum(count * size for count, size in sizes)
        peak = 8 * max(size for _, size in sizes)  # two gradients in fp32
        pixels = 13 * shape[0] * shape[1] * shape[2]  # uint8, and the steps of the normalisation
        return float(kept + peak + pixels)


def resnet(
    embedding_size: int,
    hidden_sizes: Sequence[int],
    depths: Sequence[int],
    layer_type: str,
    downsample_in_first_stage: bool,
) -> ConvolutionalNetwork:
    """A ResNet (He et al., 2016); the arguments are those of its config in `transformers`."""

    def layers(channels: int) -> Iterator[Convolution]:
        yield Convolution(channels, embedding_size, 7, 2, 2)
        inputs, reduction = embedding_size, 4
        stages = zip(hidden_sizes, depths, strict=False)
        for stage, (outputs, depth) in enumerate(stages):
            stride = 2 if stage or downsample_in_first_stage else 1
            before, reduction = reduction, reduction * stride
            if inputs != outputs or stride > 1:
                yield Convolution(inputs, outputs, 1, reduction, 2)
            if layer_type == "bottleneck":
                inner = outputs // 4
                yield Convolution(inputs, inner, 1, before, 2)
                yield Convolution(outputs, inner, 1, reduction, 2, count=depth - 1)
                yield Convolution(inner, inner, 3, reduction, 2, count=depth)
                yield Convolution(inner, outputs, 1, reduction, 2, count=depth)
            else:
                yield Convolution(inputs, outputs, 3, reduction, 2)
                yield Convolution(outputs, outputs, 3, reduction, 2, count=2 * depth - 1)
            inputs = outputs

    return ConvolutionalNetwork(layers, hidden_sizes[-1])


def convnext(
    patch_size: int, hidden_sizes: Sequence[int], depths: Sequence[int]
) -> ConvolutionalNetwork:
    """A ConvNeXt (Liu et al., 2022); the arguments are those of its config in `transformers`."""

    def layers(channels: int) -> Iterator[Convolution]:
        inputs, reduction = channels, patch_size
        for stage, (width, depth) in enumerate(zip(hidden_sizes, depths, strict=False)):
            if stage:
                reduction *= 2
            yield Convolution(inputs, width, 2 if stage else patch_size, reduction, 3)
            yield Convolution(width, width, 7, reduction, 3, groups=width, count=depth)
            yield Convolution(width, 4 * width, 1, reduction, 1, count=depth)
            yield Convolution(4 * width, width, 1, reduction, 2, count=depth)
            inputs = width

    return ConvolutionalNetwork(layers, hidden_sizes[-1])


class _TransformerSizes(BaseModel):
    """What `cost_of` reads of a config; the defaults are those of `transformers`."""

    model_config = ConfigDict(strict=True)

    hidden_size: PositiveInt = 768
    num_hidden_layers: PositiveInt = 12
    num_attention_heads: PositiveInt = 12
    intermediate_size: PositiveInt | None = None
    mlp_ratio: PositiveInt = 4
    patch_size: PositiveInt
    hidden_dropout_prob: float = 0.0


class _ResNetSizes(BaseModel):
    """The same, of a ResNet."""

    model_config = ConfigDict(strict=True)

    embedding_size: PositiveInt = 64
    hidden_sizes: Sizes = [256, 512, 1024, 2048]
    depths: Sizes = [3, 4, 6, 3]
    layer_type: str = "bottleneck"
    downsample_in_first_stage: bool = False


class _ConvNextSizes(BaseModel):
    """The same, of a ConvNeXt."""

    model_config = ConfigDict(strict=True)

    patch_size: PositiveInt = 4
    hidden_sizes: Sizes = [96, 192, 384, 768]
    depths: Sizes = [3, 3, 9, 3]


def cost_of(config: Mapping[str, Any]) -> Transformer | ConvolutionalNetwork | None:
    """What a network costs; None if no formula here is for its type, or a size is wrong.

    Args:
        config: As published or as in the settings.
    """
    kind = config["model_type"]
    try:
        if kind == "resnet":
            return resnet(**_ResNetSizes.model_validate(config).model_dump())
        if kind == "convnext":
            return convnext(**_ConvNextSizes.model_validate(config).model_dump())
        if kind not in PATCHES:
            return None
        vision = config.get("vision_config", config)
        sizes = _TransformerSizes.model_validate({"patch_size": PATCHES[kind]} | dict(vision))
    except (TypeError, ValueError):  # transformers says what is wrong
        return None
    return Transformer(
        patch_size=sizes.patch_size,
        hidden_size=sizes.hidden_size,
        layers=sizes.num_hidden_layers,
        heads=sizes.num_attention_heads,
        mlp_size=sizes.intermediate_size or sizes.mlp_ratio * sizes.hidden_size,
        dropout=sizes.hidden_dropout_prob,
    )
