"""A network that is divided between two processes, without Ray."""

import json
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import models
from retrain.params import load_workload
from retrain.project import Project
from retrain.workload import Train
from tasks.train import device, sharding
from tasks.train.loops.torch import Training
from tasks.train.step import check_slowly

SHAPE, CLASSES, CPU = (8, 8, 1), 3, torch.device("cpu")
VIT = ("vit", {"patch_size": 4, "hidden_size": 16, "layers": 2, "heads": 2})
BATCH_NORMS = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1],
    "layer_type": "basic",
}  # fmt: skip
UNTRAINED = {
    "model_type": "dinov2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "patch_size": 4,
}  # fmt: skip
NO_LIST = ("custom", {"factory": "tests.tasks.train.test_sharding:make_sequence"})
PARTS = 3  # of a batch


def make_sequence(num_classes):
    """A network without a list of layers."""
    layers = torch.nn.Linear(64, 33), torch.nn.ReLU(), torch.nn.Linear(33, num_classes)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def make_tied(num_classes):
    """A network with two names for a weight."""
    network = make_sequence(num_classes)
    network.append(torch.nn.Linear(num_classes, num_classes))
    network.append(torch.nn.Linear(num_classes, num_classes))
    network[5].weight = network[4].weight
    return network


def make_with_values(num_classes):
    """A network that cannot be made without memory."""
    assert float(torch.ones(1)) == 1.0
    return make_sequence(num_classes)


class Job:
    """What the functions use of a training."""

    def __init__(self, family, settings):
        self.family, self.settings = family, settings

    def build(self):
        torch.manual_seed(0)
        return models.build(self.family, self.settings, SHAPE, CLASSES)

    def rebuild(self, description, files):
        return models.rebuild(self.family, description, files)


class Exchanges(TorchDispatchMode):
    """Counts the operations between processes, by the type of their tensors."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            leaves = pytree.tree_leaves(args)
            tensor = next(each for each in leaves if isinstance(each, torch.Tensor))
            self.seen[func._opname.strip("_"), tensor.dtype] += 1
        return func(*args, **kwargs or {})


def gradients(network, precision):
    """Adds up the gradients of a batch that is taken in parts."""
    training = Training.__new__(Training)
    training.hyperparameters = Train(precision=precision)
    training.step, training.at_once = 0, 2
    training.network = training.module = network
    training.is_sharded = isinstance(network, FSDPModule)
    training.loss_of = torch.nn.functional.cross_entropy
    training.augmentation = lambda images, labels, step, first: (images, ((labels, 1.0),))
    training.autocast = device.autocast(CPU, training.hyperparameters)
    images = torch.arange(2 * PARTS * 64, dtype=torch.uint8).view(2 * PARTS, *SHAPE)
    training._backward(images, torch.arange(2 * PARTS) % CLASSES)
    return {
        name: whole(each.grad) for name, each in network.named_parameters() if each.requires_grad
    }


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def one_of_two(rank, store, network, precision):
    """Divides a network and calculates gradients, as one of two workers with the same images.

    Returns:
        The values that are not those of the whole network, how many numbers this worker keeps and
        how many there are, what the workers exchanged, and the largest error of a gradient.
    """
    address = f"file://{store}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    job = Job(*network)
    first = job.build() if rank == 0 else None
    divided = sharding.without_memory(job, first)
    sharding.shard(divided, first, CPU, precision)
    alone = job.build()
    values, total = dict(sharding._tensors(alone)), sum(map(torch.numel, alone.parameters()))
    wrong = [
        name
        for name, each in sharding._tensors(divided)
        if not torch.equal(whole(each), values[name])
    ]
    kept = sum(each.to_local().numel() for each in divided.parameters())
    with Exchanges() as exchanges:
        found = gradients(divided, precision)
    expected = gradients(alone, precision)
    assert found.keys() == expected.keys()
    error = max(float((found[name] - expected[name]).abs().max()) for name in found)
    torch.distributed.destroy_process_group()
    return wrong, kept, total, exchanges.seen, error


@pytest.mark.parametrize(
    ("network", "precision", "exchanged", "units"),
    [
        (VIT, "bf16", torch.bfloat16, 3),
        (("auto", {"config": BATCH_NORMS}), "bf16", torch.float32, 2),
        (("auto", {"config": UNTRAINED}), "fp32", torch.float32, 2),
        (NO_LIST, "fp32", torch.float32, 1),
    ],
)
def test_workers_keep_a_part_and_exchange_once_a_batch(
    network, precision, exchanged, units, tmp_path
):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        both = [
            pool.submit(one_of_two, rank, tmp_path / "store", network, precision)
            for rank in range(2)
        ]
        results = [each.result() for each in both]
    assert sum(kept for _, kept, *_ in results) == results[0][2]
    for wrong, kept, total, exchanges, error in results:
        assert wrong == []
        assert kept < 0.6 * total  # the first has the odd rows
        assert exchanges["reduce_scatter_base", torch.float32] == units
        assert exchanges["allgather_base", exchanged] >= units * PARTS
        assert error < (0.02 if precision == "bf16" else 1e-6)


@pytest.mark.parametrize(
    ("factory", "fault"),
    [
        ("make_tied", "cannot divide classifier.5.weight, which has two names; use ddp."),
        (
            "make_with_values",
            "make_with_values failed: RuntimeError: Tensor.item() cannot be called",
        ),
    ],
)
def test_a_network_that_cannot_be_divided_is_refused_before_the_run(tmp_path, factory, fault):
    def found(factory):
        tree = {
            "data": {"path": "data"},
            "images": {"size": 8, "channels": 1},
            "model": {"family": "custom", "factory": f"{__name__}:{factory}"},
            "scale": {"workers": 2, "strategy": "fsdp"},
        }
        (tmp_path / "params.yaml").write_text(json.dumps({"workloads": {"own": tree}}))
        workload = load_workload(tmp_path / "params.yaml", "own")
        return list(check_slowly(workload, Project(tmp_path)))

    [said] = found(factory)
    assert fault in said
    assert found("make_sequence") == []
