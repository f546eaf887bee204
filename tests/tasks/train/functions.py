"""Training functions of users, good and bad, for `test_user_function.py`."""

import tempfile
import time
from pathlib import Path

import ray.train
import torch
from accelerate import Accelerator
from ray.train import Checkpoint, report as report_of_ray
from safetensors.torch import save_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from examples import huggingface, network, ported


def no_module(num_classes):
    return {}


def with_an_idle_parameter(num_classes):
    made = network.build_model(num_classes, channels=1)
    made.idle = torch.nn.Parameter(torch.ones(3))
    return made


class Unrepeatable(torch.nn.Sequential):
    """A linear layer, of images of 8 x 8, and an operation that is not repeatable to the bit."""

    def forward(self, pixels):
        torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))
        return super().forward(pixels)


def unrepeatable(num_classes):
    return Unrepeatable(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))


class Tied(torch.nn.Module):
    """Two layers with one weight, of images of 8 x 8."""

    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = torch.nn.Linear(64, num_classes)

    def forward(self, pixels):
        return self.last(self.second(torch.relu(self.first(pixels.flatten(1)))))


def narrow(num_classes):
    """Three hidden units, as many as the classes that it is given."""
    hidden = torch.nn.Linear(64, 3)
    last = torch.nn.Linear(3, num_classes)
    return torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), last)


def tied(num_classes):
    return Tied(num_classes)


def pretrained_network(num_classes, weights, vocabulary=None, pretrained=True):
    """Reads its weights from a file, unless it gets others."""
    made = network.build_model(num_classes, channels=1)
    if vocabulary is not None:
        made[-1].bias.data.fill_(float(Path(vocabulary).read_text(encoding="utf-8")))
    if pretrained:
        made[0].load_state_dict(torch.load(weights, weights_only=True))
    return made


def always_pretrained(num_classes, weights):
    return pretrained_network(num_classes, weights)


class Forgets(torch.nn.Module):
    """Half of its weights are no parameters."""

    def __init__(self, num_classes):
        super().__init__()
        self.weights = torch.rand(64, num_classes)
        self.bias = torch.nn.Parameter(torch.zeros(num_classes))

    def forward(self, pixels):
        return pixels.flatten(1) @ self.weights + self.bias


def report(metrics, named=None, **weights):
    """Reports metrics, and a file for each of the weights that are some; one may be named."""
    files = {f"{name}.pt": each for name, each in weights.items() if each is not None}
    with tempfile.TemporaryDirectory() as folder:
        for name, each in files.items():
            torch.save(each, Path(folder, name))
        checkpoint = Checkpoint.from_directory(folder) if files else None
        if named:
            checkpoint.set_metadata({"weights": named})
        report_of_ray(metrics, checkpoint=checkpoint)  # imported by its name


def reports(config):
    """Reports as it is told; it does not resume, and is lost once before its fourth report."""
    for number, (metrics, kind) in enumerate(config["reports"]):
        if number == 3:
            lose_once(config)
        made = network.build_model(len(config["classes"]), channels=1).state_dict()
        weights = {
            "none": None,
            "another": torch.nn.Linear(2, 2).state_dict(),
            "filled": {
                "network": {name: torch.full_like(each, number) for name, each in made.items()}
            },
        }[kind]
        numbers = {name: torch.tensor(float(value)) for name, value in metrics.items()}
        report(numbers, weights=weights)
    return lambda: None  # which cannot be pickled


def lose_once(config):
    if not (lost := Path(config["lost"])).exists():
        lost.touch()
        raise RuntimeError("the connection was lost")


def reports_wrapped(config):
    """One of the networks as they are inside `torch.compile` and other wrappers."""
    made = network.build_model(len(config["classes"]), channels=1)
    for value in made.parameters():
        torch.nn.init.constant_(value, 7)
    made[0] = checkpoint_wrapper(made[0])
    made[3] = torch.compile(made[3])
    names = torch.compile(made).state_dict()
    assert "_orig_mod.3._orig_mod.weight" in names
    report({"score": 0.5}, weights={f"module.{name}": each for name, each in names.items()})


def reports_two(config):
    """Two networks in a checkpoint: an average of the weights, as some keep it, and the network."""
    made = config["model"].state_dict()
    average, other = ({key: torch.full_like(each, n) for key, each in made.items()} for n in (1, 2))
    model = {"network": other, "epoch": 3}
    report({"score": 0.5}, config.get("named"), average=average, model=model)


def reports_the_model(config):
    report(config["metrics"], weights=config["model"].state_dict())


def reports_tied(config):
    """A file of safetensors, which has tied weights once."""
    made = tied(len(config["classes"]))
    for value in made.parameters():
        torch.nn.init.constant_(value, 3)
    with tempfile.TemporaryDirectory() as folder:
        save_model(made, str(Path(folder, "model.safetensors")))
        ray.train.report({"score": 0.5}, checkpoint=Checkpoint.from_directory(folder))


def reads_a_file(config):
    torch.load(config["file"])


def stops_once(config):
    """Trains, but the connection is lost in the third report, once."""
    real, reported = ray.train.report, []

    def losing(metrics, checkpoint=None):
        if len(reported) == 2:
            lose_once(config)
        reported.append(metrics)
        real(metrics, checkpoint=checkpoint)

    ray.train.report = losing
    try:
        (huggingface if config.get("by_trainer") else ported).train(config)
    finally:
        ray.train.report = real
        with Path(config["lost"]).with_name("reported").open("a", encoding="utf-8") as file:
            file.write(f"{len(reported)} ")


def hangs_on_one_worker(config):
    """The others wait for it."""
    if ray.train.get_context().get_world_rank():
        time.sleep(600)
    report({"score": 0.5}, weights=config["model"].state_dict())


def raises_on_the_last_worker(config):
    """The others wait for it; each notes how often it was tried."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    with Path(config["folder"], f"tries-of-{rank}").open("a", encoding="utf-8") as tries:
        tries.write("x")
    if rank == context.get_world_size() - 1:
        raise ConnectionError("away") if config["passes"] else ValueError("no such thing")
    torch.distributed.all_reduce(torch.zeros(1))


def trains_with_accelerate(config):
    assert Accelerator().num_processes == config["processes"]
    report({"score": 0.5}, weights=config["model"].state_dict())
