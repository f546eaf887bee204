"""Finds the network's weights in a checkpoint that a training function of the user's has reported.

They are the `state_dict` of the network that the section `model` describes, in one file, whatever
its name is; under one of the names in that file, if it holds more.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from ray.train import Checkpoint
from safetensors.torch import load_file

from models.network import Network
from tasks.data.shards import open_prepared
from tasks.train.job import TrainingJob

# Of files that may hold weights.
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NAMED = "weights"  # of the checkpoint's metadata: the file that counts, if several fit
# What is in the names of a network that was saved inside DDP, `torch.compile` or a wrapper for
# activation checkpointing.
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+|\b(_orig_mod|_checkpoint_wrapped_module)\.")


def network_of(job: TrainingJob, checkpoint: Checkpoint) -> Network:
    """The network with the weights of a checkpoint.

    Args:
        job: The training.
        checkpoint: What was reported. If several files hold weights of the network, its metadata
            names the one that counts: `checkpoint.set_metadata({"weights": "model.pt"})`.

    Raises:
        ValueError: No file has the weights, or several have others.
    """
    with torch.random.fork_rng(devices=[]):  # the function in this process goes on with its numbers
        network = job.build(open_prepared(job.images))
    state = {_plain(name): value for name, value in network.classifier.state_dict().items()}
    named = checkpoint.get_metadata().get(NAMED)
    with checkpoint.as_directory() as folder:
        files = sorted(path for path in Path(folder).rglob("*") if path.suffix in SUFFIXES)
        found = [
            (f"{path.relative_to(folder)}{place}", weights)
            for path in files
            for place, weights in _state_dicts(path)
            if _fit(weights, state) and named in (None, path.relative_to(folder).as_posix())
        ]
    if not found:
        raise ValueError(
            "train.function: no file of the reported checkpoint has the state_dict of the network "
            f"that the section model describes. Files are read that end in {', '.join(SUFFIXES)}."
        )
    (first, weights), *others = found
    for other, different in others:
        if not _are_equal(weights, different):
            raise ValueError(
                f"train.function: the reported checkpoint has two networks, in {first} and "
                f"{other}: which is the model? Report one, or name its file with "
                f'checkpoint.set_metadata({{"{NAMED}": "{files[0].name}"}}).'
            )
    for name, value in weights.items():
        state[name].copy_(value)
    return network


def _are_equal(weights: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    return weights.keys() == others.keys() and all(
        torch.equal(value, others[name]) for name, value in weights.items()
    )


def _plain(name: str) -> str:
    return WRAPPED.sub("", name)


def _fit(weights: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether weights are all of a network's; of tied ones, one is enough."""
    shapes = {name: value.shape for name, value in state.items()}
    pointers = {state[name].data_ptr() for name in weights.keys() & state.keys()}
    return all(value.shape == shapes.get(name) for name, value in weights.items()) and all(
        name in weights or value.data_ptr() in pointers for name, value in state.items()
    )


def _state_dicts(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings of names to tensors in a file: all of it, or those that it holds, by name."""
    if path.suffix == ".safetensors":
        content = load_file(path)
    else:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # a file of another kind, or with objects that are not read
            return
    if not isinstance(content, Mapping):
        return
    for name, state in [("", content), *((f"[{key!r}]", each) for key, each in content.items())]:
        if isinstance(state, Mapping) and all(torch.is_tensor(value) for value in state.values()):
            yield name, {_plain(str(key)): value for key, value in state.items()}
