"""What a vision transformer costs: parameters, operations and memory, by formula."""

from dataclasses import dataclass


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
