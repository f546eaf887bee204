"""What is said about a training before it runs, against networks that are really built."""

from pathlib import Path

import pytest
import torch

from models import auto, vit
from retrain import hardware
from retrain.params import load_workload
from retrain.project import Project
from retrain.workload import Lora, Model, Scale, Train
from tasks.train import estimate as module
from tasks.train.adapters import add_adapters
from tasks.train.estimate import Estimate, estimate, forecast, notice
from tasks.train.optimizer import make_optimizer

SHIPPED = Path(__file__).parents[3] / "params.yaml"
VIT_B16 = {
    "images.size": 224, "images.channels": 3, "model.patch_size": 16, "model.hidden_size": 768,
    "model.layers": 12, "model.heads": 12, "train.precision": "bf16", "scale.threads": 2,
}  # fmt: skip


def workload(**overrides):
    return load_workload(SHIPPED, "vit", overrides)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Gives this machine other memory and GPUs."""

    def is_one(memory=16e9, gpus=(), gpu_memory=0.0):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(module, "free_memory", lambda: memory)
        monkeypatch.setattr(module, "gpu_capabilities", lambda: gpus)
        monkeypatch.setattr(module, "free_gpu_memory", lambda: gpu_memory)
        monkeypatch.setattr(module, "_cpu_flops", lambda: 200e9)

    is_one()
    return is_one


RESNET18 = {
    "model_type": "resnet", "layer_type": "basic", "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2],
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "parameters", "flops"),
    [  # the figures of torchvision, for which a multiplication with its addition is one
        (Model(family="auto", config=RESNET18), 11_689_512, 2 * 1.814e9),
        (Model(family="vit", hidden_size=768, layers=12, heads=12), 86_567_656, 2 * 17.564e9),
    ],
)
def test_published_networks_cost_what_is_published(model, parameters, flops):
    found = estimate(model, Train(precision="fp32"), Scale(), (224, 224, 3), 1000, Path())
    assert (found.parameters, found.trained) == (parameters, parameters)
    assert found.flops == pytest.approx(3 * flops, rel=1e-3)


def make_network(num_classes, pretrained=True):
    assert not pretrained  # nothing is downloaded for an estimate
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


def make_a_network_that_needs_values(num_classes):
    assert float(torch.ones(1)) == 1.0


def test_a_network_of_the_user_s_own_is_estimated_where_it_can_be_made_without_memory():
    own, other = (
        Model(family="custom", factory=f"{__name__}:{name}")
        for name in ("make_network", "make_a_network_that_needs_values")
    )
    given = Train(precision="fp32"), Scale(), (8, 8, 1), 10, SHIPPED.parent
    assert estimate(own, *given).parameters == 650
    assert estimate(own, *given).flops == 3 * 2 * 640
    assert estimate(other, *given) is None
    assert estimate(Model(family="embedding_head", pretrained="a/b"), *given) is None


NETWORKS = {
    "resnet": (auto, {"config": RESNET18 | {"hidden_sizes": [16, 32], "depths": [4, 2]}}),
    "convnext": (auto, {"config": {"model_type": "convnext", "hidden_sizes": [32, 64],
                                   "depths": [3, 3], "num_stages": 2}}),
    "vit": (vit, {"patch_size": 4, "hidden_size": 64, "layers": 6, "heads": 4}),
    "dropout": (vit, {"patch_size": 2, "hidden_size": 64, "layers": 6, "heads": 4, "dropout": 0.1}),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_activations_are_those_that_pytorch_keeps(name, precision):
    shape, batch = (32, 32, 3), 16
    family, given = NETWORKS[name]
    network = family.build(family.Settings(**given), shape, 10)
    network.prefer_attention("cpu", precision)
    weights = {each.untyped_storage() for each in network.parameters()}
    kept = set()

    def keep(tensor):
        kept.add(tensor.untyped_storage())
        return tensor

    images = torch.zeros((batch, *shape), dtype=torch.uint8)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        network(images)
    measured = sum(storage.nbytes() for storage in kept - weights) / batch
    skeleton = family.without_memory(family.Settings(**given), shape, Path(), 10)
    skeleton.prefer_attention("cpu", precision)
    _, activations = module.measure(skeleton, shape, on_gpu=False)
    # The peak of the backward pass, which is not kept, is in the estimate too.
    assert 0.9 * measured < activations * module.KEPT[precision] < 2 * measured


def held_by(network, hyperparameters):
    """Bytes of the weights, the gradients and the optimizer's state after a training step."""
    optimizer = make_optimizer(network, hyperparameters)
    network(torch.zeros((2, 32, 32, 3), dtype=torch.uint8)).sum().backward()
    optimizer.step()
    weights = list(network.parameters())
    gradients = [each.grad for each in weights if each.grad is not None]
    moments = [each for state in optimizer.state.values() for each in state.values()]
    return sum(each.nbytes for each in (*weights, *gradients, *moments))


def test_with_adapters_only_they_have_gradients_and_optimizer_state():
    sizes = {"patch_size": 8, "hidden_size": 128, "layers": 4, "heads": 4}
    shape, held, found = (32, 32, 3), [], []
    for lora in (None, Lora(r=8)):
        train = Train(lora=lora, precision="fp32", batch_size=2)
        network = vit.build(vit.Settings(**sizes), shape, 5)
        if lora:
            add_adapters(network, lora)
        held.append(held_by(network, train))
        found.append(estimate(Model(family="vit", **sizes), train, Scale(), shape, 5, Path()))
        trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
        assert found[-1].trained == trained
    saved = held[0] - held[1]
    assert saved > 0.6 * held[0]
    best = module.BEST_BYTES * (found[0].parameters - found[1].parameters - found[1].trained)
    assert found[0].memory - found[1].memory == pytest.approx(saved + best, rel=1e-3)
    assert f"({found[1].trained:,} trained)" in str(found[1])
    assert "trained" not in str(found[0])


def test_a_divided_network_takes_each_worker_a_part(machine):
    machine(gpus=(9.0,) * 4, gpu_memory=80e9)
    train, shape = Train(precision="fp32", batch_size=4), (32, 32, 3)
    model = Model(family="vit", patch_size=8, hidden_size=128, layers=4, heads=4)
    found = {
        strategy: estimate(model, train, Scale(workers=4, strategy=strategy), shape, 5, Path())
        for strategy in ("ddp", "fsdp")
    }
    # Weights, gradients and moments are 16 bytes; DDP has 4 more for the exchange.
    saved = (4 + 16 * 3 / 4) * found["ddp"].parameters
    assert found["ddp"].memory - found["fsdp"].memory == pytest.approx(saved)


def test_the_starter_workload_is_not_mentioned(machine):
    assert forecast(workload(), Project(SHIPPED.parent)).says is None
    machine(memory=4e9)
    assert forecast(workload(), Project(SHIPPED.parent)).says is None


def test_a_large_training_is_described():
    said = forecast(workload(**VIT_B16), Project(SHIPPED.parent))
    assert said.excess is None
    assert said.says is not None
    assert said.says.startswith("train: about 86 million parameters, ")
    assert said.says.endswith("minutes in each of 40 epochs.")


def test_what_does_not_fit_into_the_machine_is_refused(machine):
    machine(memory=2e9)
    said = forecast(workload(**VIT_B16), Project(SHIPPED.parent)).excess
    assert said is not None
    assert "about 86 million parameters" in said
    assert "this machine has 2.0 GB free. Wait for" in said
    assert "--force" in said
    machine(memory=5e9)
    parts = VIT_B16 | {"train.micro_batch": 4}
    assert forecast(workload(**VIT_B16), Project(SHIPPED.parent)).excess is not None
    assert forecast(workload(**parts), Project(SHIPPED.parent)).excess is None


def test_each_worker_takes_its_part_of_the_memory(machine):
    many = {"scale.workers": 64, "train.batch_size": 64}
    said = forecast(workload(**many), Project(SHIPPED.parent)).excess
    assert said is not None
    assert "this machine has for each of 64 workers 250 MB free." in said


def test_on_gpus_their_memory_counts(machine):
    machine(memory=1e9, gpus=(9.0,), gpu_memory=80e9)
    said = forecast(workload(**VIT_B16), Project(SHIPPED.parent))
    assert said.excess is None
    machine(memory=100e9, gpus=(9.0,), gpu_memory=2e9)
    excess = forecast(workload(**VIT_B16), Project(SHIPPED.parent)).excess
    assert excess is not None and "each GPU has 2.0 GB free" in excess


def test_a_cluster_is_not_judged_by_this_machine(machine, monkeypatch):
    machine(memory=1e9)
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    assert forecast(workload(**VIT_B16), Project(SHIPPED.parent)).excess is None


def test_the_start_of_a_long_training_is_announced():
    given = workload(**VIT_B16)
    found = estimate(given.model, given.train, given.scale, (224, 224, 3), 10, SHIPPED.parent)
    assert found is not None
    line = notice(found, 50_000, 3)
    assert line is not None
    assert line.startswith("train: about 86 million parameters, ")
    assert line.endswith(" hours in each of 3 epochs.")
    small = Estimate(1000, 1000, 0.8e9, 1e6, on_gpu=False, precision="fp32", workers=1)
    assert notice(small, 50_000, 3) is None


def test_the_speed_of_the_machine_is_a_speed(monkeypatch):
    monkeypatch.undo()
    assert 1e8 < module._cpu_flops() < 1e14


def test_memory_is_that_of_the_machine_or_of_the_container(tmp_path, monkeypatch):
    real = hardware.memory()
    assert 1e8 < real < 1e15
    read = Path.read_text
    own = "0::/team/job\n1:memory:/team\n2:cpu:/team\n"
    monkeypatch.setattr(
        Path, "read_text",
        lambda self, **how: own if str(self) == "/proc/self/cgroup" else read(self, **how),
    )  # fmt: skip
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path)
    assert hardware.memory() >= real
    (tmp_path / "team" / "job").mkdir(parents=True)
    (tmp_path / "team" / "job" / "memory.max").write_text("max\n")
    (tmp_path / "team" / "memory.max").write_text("90000000\n")
    (tmp_path / "team" / "memory.current").write_text("50000000\n")
    (tmp_path / "team" / "memory.stat").write_text("file 40000000\ninactive_file 30000000\n")
    assert hardware.memory() == 90e6
    assert hardware.free_memory() == 70e6
