"""The schema of a workload, an entry under `workloads` in `params.yaml`: keys, defaults and bounds.

`retrain.params` reads the file.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from retrain.workload.data import (
    NEAR_DUPLICATES,
    Checks,
    Data,
    Images,
    Section,
    Split,
    is_pattern,
)
from retrain.workload.evaluation import Drift, Evaluate, Gate, Production, Serve
from retrain.workload.training import (
    PASSED_ON,
    Augment,
    Best,
    ColorJitter,
    Model,
    Plateau,
    Scale,
    Searched,
    Train,
    Tune,
)

__all__ = [
    "NEAR_DUPLICATES",
    "PASSED_ON",
    "Augment",
    "Best",
    "Checks",
    "ColorJitter",
    "Data",
    "Drift",
    "Evaluate",
    "Gate",
    "Images",
    "Model",
    "Plateau",
    "Production",
    "Scale",
    "Searched",
    "Section",
    "Serve",
    "Split",
    "Train",
    "Tune",
    "Workload",
    "flatten",
    "is_pattern",
]


class Workload(Section):
    """One model to keep trained: an entry under `workloads` in `params.yaml`."""

    name: str
    data: Data
    checks: Checks = Checks()
    images: Images = Images()
    model: Model
    train: Train = Train()
    scale: Scale = Scale()
    evaluate: Evaluate = Evaluate()
    gate: Gate = Gate()
    tune: Tune = Tune()
    drift: Drift = Drift()
    production: Production = Production()
    serve: Serve = Serve()
    limits: dict[str, Annotated[float, Field(gt=0, le=8760)]] = Field(
        default={},
        description=(
            "The time limits of steps, in hours, by name: `{train: 3}`. A step that is not named "
            "has a generous default."
        ),
    )
    _entry: Any = PrivateAttr(None)  # what `retrain.params` read it from

    def flat(self) -> dict[str, Any]:
        """Every parameter by its dotted name: `{"train.lr": 0.001, …}`, in order."""
        return flatten(self.model_dump(mode="json"))

    def faults(self) -> Iterator[str]:
        """A sentence for each of the values that are valid alone but not together."""
        yield from self.data.faults()
        yield from self._image_faults()
        yield from self._batch_faults()
        for name, searched in self.tune.space.items():
            for fault in searched.faults():
                yield f"tune.space.{name}: {fault}"

    def _image_faults(self) -> Iterator[str]:
        """Finds what does not go together in how images are prepared, changed and brought."""
        augment, size = self.train.augment, self.images.size
        if augment.shift >= size:
            yield f"train.augment.shift {augment.shift} must be smaller than images.size {size}."
        if augment.needs_color and self.images.channels == 1:
            yield (
                "train.augment: saturation, hue and rand_augment need images.channels=3. Grey "
                "images have no colours to change."
            )
        source = self.images.storage == "source"
        if self.images.margin and (source or augment.crop is None):
            yield (
                "images.margin: is for train.augment.crop on prepared images; leave it out, as "
                f"{'images.storage is source' if source else 'there is no crop'}."
            )
        if source and self.train.balance == "sampling":
            yield (
                "train.balance: sampling is for prepared images, and images.storage is source. Set "
                "train.balance=loss, or images.storage=pixels."
            )

    def _batch_faults(self) -> Iterator[str]:
        """Finds what does not go together in how a batch is divided."""
        batch, workers = self.train.batch_size, max(self.scale.workers, 1)
        if batch < workers:
            yield f"train.batch_size {batch} is less than an image for each of {workers} workers."
        elif (micro := self.train.micro_batch) is not None and micro > batch // workers:
            yield (
                f"train.micro_batch {micro} is more than a worker's part of train.batch_size, "
                f"{batch // workers}."
            )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
