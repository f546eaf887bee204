"""What is said about a training before it runs, against networks that are really built."""

from pathlib import Path

import pytest
import torch

from models import auto, vit
from retrain import hardware
from retrain.params import load_workload
from retrain.project import Project
from retrain.workload import Checks, Data, Images, Lora, Model, Scale, Train, Workload
from tasks.train import estimate as module
from tasks.train.estimate import estimate, forecast
from tasks.train.optimizer import make_optimizer
from tests.models.test_pretrained import SHA, Hub
from tests.tasks.pull.pulling import serving

SHIPPED = Path(__file__).parents[3] / "params.yaml"
PROJECT = Project(SHIPPED.parent)
VIT_B16 = {
    "images.size": 224, "images.channels": 3, "model.patch_size": 16, "model.hidden_size": 768,
    "model.layers": 12, "model.heads": 12, "train.precision": "bf16", "scale.threads": 2,
}  # fmt: skip
SMALL = Model(family="vit", patch_size=8, hidden_size=128, layers=4, heads=4)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Gives this machine other memory and GPUs."""

    def is_one(memory=16e9, gpus=(), gpu_memory=0.0):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setattr(module, "free_memory", lambda: memory)
        monkeypatch.setattr(module, "gpu_capabilities", lambda: gpus)
        monkeypatch.setattr(module, "free_gpu_memory", lambda: gpu_memory)
        monkeypatch.setattr(module, "cpu_flops", lambda: 200e9)

    is_one()
    return is_one


def found(model=SMALL, *, size=32, channels=3, classes=5, scale=None, **train):
    """The estimate of a training."""
    workload = Workload(
        name="sides", data=Data(path="data/sides"), model=model, scale=scale or Scale(),
        images=Images(size=size, channels=channels), train=Train(precision="fp32", **train),
        checks=Checks(labels=[str(number) for number in range(classes)]),
    )  # fmt: skip
    return estimate(workload, PROJECT)


def told(**overrides):
    return forecast(load_workload(SHIPPED, "vit", overrides), PROJECT)


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
    network = found(model, size=224, classes=1000)
    assert network.parameters == parameters
    assert network.flops == pytest.approx(3 * flops, rel=1e-3)


def make_network(num_classes, pretrained=True):
    assert not pretrained  # nothing is downloaded for an estimate
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


def make_a_network_that_needs_values(num_classes):
    assert float(torch.ones(1)) == 1.0


def test_a_network_of_the_user_s_own_is_estimated_where_it_can_be_made_without_memory():
    own, other = (
        found(Model(family="custom", factory=f"{__name__}:{name}"), size=8, channels=1, classes=10)
        for name in ("make_network", "make_a_network_that_needs_values")
    )
    assert (own.parameters, own.flops) == (650, 3 * 2 * 640)
    assert other is None


NETWORKS = {
    "resnet": (auto, {"config": RESNET18 | {"hidden_sizes": [16, 32], "depths": [4, 2]}}),
    "vit": (vit, {"patch_size": 4, "hidden_size": 64, "layers": 6, "heads": 4}),
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
    _, activations = module.measure(skeleton, shape)
    # The peak of the backward pass, which is not kept, is in the estimate too.
    assert 0.9 * measured < activations * module.KEPT[precision] < 2 * measured


def test_the_state_is_that_of_a_training_step():
    network = vit.build(vit.Settings(**SMALL.model_dump(exclude={"family"})), (32, 32, 3), 5)
    optimizer = make_optimizer(network, Train())
    network(torch.zeros((2, 32, 32, 3), dtype=torch.uint8)).sum().backward()
    optimizer.step()
    moments = [each for state in optimizer.state.values() for each in state.values()]
    held = [*network.parameters(), *(each.grad for each in network.parameters()), *moments]
    all_trained = found(batch_size=2)
    best = 4 * all_trained.parameters
    whole = sum(each.nbytes for each in held) + best
    assert all_trained.memory > module.PROCESS_BYTES + whole
    adapted = found(batch_size=2, lora=Lora(r=8))  # nearly without gradients and moments
    assert 9 < (all_trained.memory - adapted.memory) / all_trained.parameters < 12
    divided = found(batch_size=8, scale=Scale(workers=4, strategy="fsdp"))
    assert all_trained.memory - divided.memory == pytest.approx(20 * 3 / 4 * divided.parameters)


def test_a_large_training_is_described_and_a_small_one_is_not(machine):
    machine(memory=4e9)
    assert told().says is None
    large = told(**VIT_B16)
    assert large.says.startswith("train: about 86 million parameters, ")
    assert large.says.endswith("minutes in each of 40 epochs.")


@pytest.mark.parametrize(
    ("of_machine", "changes", "said"),
    [
        ({"memory": 16e9}, {}, None),
        ({"memory": 2e9}, {}, ", and this machine has 2.0 GB free. Wait for"),
        ({"memory": 5.5e9}, {}, "about 86 million parameters"),
        ({"memory": 5.5e9}, {"train.micro_batch": 4}, None),
        (
            {"memory": 16e9},
            {"scale.workers": 64, "train.batch_size": 64},
            "each of 64 workers on this machine has 250.0 MB free",
        ),
        ({"memory": 1e9, "gpus": (9.0,), "gpu_memory": 80e9}, {}, None),
        ({"gpus": (9.0,), "gpu_memory": 2e9}, {}, "each GPU has 2.0 GB free"),
    ],
)
def test_what_does_not_fit_into_the_machine_is_refused(machine, of_machine, changes, said):
    machine(**of_machine)
    excess = told(**VIT_B16 | changes).excess
    assert said in excess if said else excess is None


def test_weights_that_will_be_fetched_are_announced_with_their_size(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    model = Model(family="vit", pretrained="me/vit@v1", pretrained_version=SHA)
    training = Workload(name="sides", data=Data(path="data/sides"), model=model)
    said = "me/vit@v1 will be fetched from the Hugging Face hub first"
    with serving(Hub) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        assert forecast(training, PROJECT).fetches == f"{said}, 346.0 MB."
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert forecast(training, PROJECT).fetches == f"{said}."
    snapshot = tmp_path / "models--me--vit" / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    (snapshot / "pytorch_model.bin").touch()
    assert forecast(training, PROJECT).fetches is None
    assert told().fetches is None


def test_a_cluster_is_not_judged_by_this_machine(machine, monkeypatch):
    machine(memory=1e9)
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    assert told(**VIT_B16).excess is None


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
    for name, content in (
        ("job/memory.max", "max\n"),
        ("memory.max", "90000000\n"),
        ("memory.current", "50000000\n"),
        ("memory.stat", "file 40000000\ninactive_file 30000000\n"),
    ):
        (tmp_path / "team" / name).write_text(content)
    assert hardware.memory() == 90e6
    assert hardware.free_memory() == 70e6
