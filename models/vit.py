"""Vision Transformer (Dosovitskiy et al., 2021): `auto` with a ViT's sizes by their usual names.

What it makes from them is a config of `auto`, which makes the network; a pretrained ViT, too.
"""

from typing import Annotated, Any

from pydantic import Field, model_validator

from models.auto import Classifier
from models.family import Shape
from models.pretrained import Pretrained

Width = Annotated[int, Field(ge=1, le=1 << 16)]


class Settings(Classifier):
    """A ViT's settings in `params.yaml`: `pretrained`, or the sizes of one with random weights."""

    patch_size: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=16, description="Side of a patch in pixels; it divides `images.size`."
    )
    hidden_size: Width = Field(
        default=384, description="Width of a token's representation; `heads` divides it."
    )
    layers: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=12, description="Transformer blocks."
    )
    heads: Width = Field(default=6, description="Attention heads in each block.")
    mlp_ratio: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=4.0, description="Width of a block's MLP, in `hidden_size`s."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Of the blocks' outputs and of the attention."
    )
    # The default follows LeCun et al., 1998. The 0.02 of `transformers` is made for widths near
    # 768; a narrow network learns badly from it.
    initializer_range: Annotated[float, Field(gt=0, le=100)] | None = Field(
        default=None,
        description=(
            "Standard deviation of the initial weights; `1 / sqrt(hidden_size)` when null, which "
            "keeps a layer's output as large as its input."
        ),
    )

    @model_validator(mode="after")
    def _goes_together(self) -> "Settings":
        sizes = sorted(self.model_fields_set - Pretrained.model_fields.keys())
        if self.pretrained is not None and sizes:
            drop = " ".join(f"--set model.{name}=" for name in sizes)
            raise ValueError(
                f"pretrained: brings its own sizes: leave out {', '.join(sizes)} ({drop})"
            )
        if self.hidden_size % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden_size {self.hidden_size}")
        return self

    @property
    def mlp_size(self) -> int:
        """Width of a block's MLP."""
        return round(self.hidden_size * self.mlp_ratio)

    @property
    def config(self) -> dict[str, Any] | None:
        """The config of `transformers`, as `auto` has it; None for a pretrained network."""
        if self.pretrained is not None:
            return None
        return {
            "model_type": "vit",
            "patch_size": self.patch_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.mlp_size,
            "hidden_dropout_prob": self.dropout,
            "attention_probs_dropout_prob": self.dropout,
            "initializer_range": self.initializer_range or self.hidden_size**-0.5,
        }

    def faults(self, shape: Shape) -> list[str]:
        """A sentence if the patches do not fit the images."""
        if self.pretrained is None and shape[0] % self.patch_size:
            return [f"model.patch_size: {self.patch_size} does not divide images.size {shape[0]}."]
        return []

    def flops(self, shape: Shape) -> float:
        """The cost of a forward pass over one image, counting only the large matrix products.

        Args:
            shape: Height, width and channels of the images.

        Returns:
            Floating-point operations; a multiplication with its addition is two. A pretrained
            network counts as infinitely large, because its sizes are not known before the
            download, and published networks are large.
        """
        if self.pretrained is not None:
            return float("inf")
        side, hidden = self.patch_size, self.hidden_size
        patches = (shape[0] // side) * (shape[1] // side)
        tokens = patches + 1
        block = tokens * hidden * (4 * hidden + 2 * self.mlp_size) + 2 * tokens**2 * hidden
        return 2.0 * (self.layers * block + patches * side**2 * shape[2] * hidden)
