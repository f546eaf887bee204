"""A head on the embeddings of a pretrained network that stays as it is.

The head is linear (`hidden` wide), batch norm, ReLU, dropout, linear. It is trained on embeddings,
which the step `embed` makes once; what is saved takes images, as any network does. The backbones
are those of `models.backbone`.

Nothing of the backbone's image processor counts but the values of pixels: the project prepares the
images, as `images` says.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from models.family import Name, Shape
from models.pretrained import Pretrained

if TYPE_CHECKING:
    from models.network import Network

# About the width of embeddings; it only decides the threads and the precision of the training.
WIDTH = 1024


class Settings(Pretrained):
    """The settings in `params.yaml` of a head on embeddings."""

    pretrained: Name = Field(
        description=(
            "The backbone: a model on the Hugging Face hub, `owner/name` or `owner/name@revision`, "
            "or a folder that holds one; a relative path is below the project."
        ),
    )
    hidden: Annotated[int, Field(ge=1, le=1 << 16)] = Field(
        default=256, description="Width of the head's hidden layer."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.3, description="After the hidden layer."
    )

    def training_flops(self, shape: Shape) -> float:
        """The cost of a forward pass over one embedding: what is trained is the head."""
        return 2.0 * WIDTH * self.hidden

    def check_network(self, shape: Shape, root: Path) -> None:
        """Checks the backbone."""
        from models import backbone

        backbone.check(self.pretrained, self.pretrained_version, shape, root)

    def build(self, shape: tuple[int, ...], classes: int) -> "Network":
        """Makes a new head, which takes embeddings; `complete` puts it on its backbone."""
        from torch import nn

        from models.embedding_head_network import EmbeddingClassifier, make_head
        from models.network import Network

        [inputs] = shape
        sizes: dict[str, Any] = {
            "inputs": inputs,
            "hidden": self.hidden,
            "dropout": self.dropout,
            "classes": classes,
        }
        classifier = EmbeddingClassifier(nn.Identity(), "", make_head(**sizes))
        return Network(classifier, {"head": sizes}, (), ())

    def complete(self, trained: "Network") -> "Network":
        """Puts a trained head on its backbone, on the CPU."""
        from models.backbone import load

        network = load(self.pretrained, self.pretrained_version)
        network.classifier.head = trained.classifier.head.cpu()
        network.description["config"] |= trained.description["config"]
        return network
