"""Lists the families, for the code that reads a workload.

No step imports this module, so a new family does not change the steps of the others.
"""

from models import auto, custom, embedding_head, vit
from models.family import Family

# The settings of each family, by the name of its module.
FAMILIES: dict[str, type[Family]] = {
    "auto": auto.Settings,
    "custom": custom.Settings,
    "embedding_head": embedding_head.Settings,
    "vit": vit.Settings,
}
