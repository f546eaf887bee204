"""The workloads that are shipped, with small stand-ins for the data and weights of the examples."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from retrain import hardware
from tests import hub
from tests.flows.conftest import ROOT, draw_photos, shorten_trainings

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))

# Where the weights below were trained: another processor or library may round otherwise.
REFERENCE = {
    "processor": "AMD EPYC",
    "kind": ["25", "17", "1024 KB"],  # family, model and cache, by which kernels divide their sums
    "instructions": ["avx2", "avx512_bf16", "avx512f"],
    "cores": 2,  # so many threads divide the sums of a network whose size is not known
    "accelerators": [],
    "libraries": {
        "kornia": "0.9.0", "numpy": "2.4.6", "pillow": "13.0.0", "torch": "2.13.0+cpu",
        "transformers": "5.23.0",
    },
}  # fmt: skip
# How their SHA-256 begin. A change that changes one says in its commit why.
WEIGHTS = {
    "vit": "db18ae986496",
    "beans": "b175c1f2448a",
    "cifar10": "7d3ee2bf61b9",
    "custom": "f081b01c6af4",
    "doggos": "caa2c541c649",
    "mnist": "ca50db5e72b2",
}


def check_weights(workload, document):
    """Compares what was trained with what is noted, where that can be the same."""
    libraries = {name: version(name) for name in REFERENCE["libraries"]}
    here = {name: value for name, value in hardware.machine().items() if name in REFERENCE}
    cpu = Path("/proc/cpuinfo")
    kind = r"^(?:cpu family|model|cache size)\s*: (.*)$"
    found = re.findall(kind, cpu.read_text(encoding="utf-8"), re.MULTILINE) if cpu.exists() else []
    here |= {"kind": found[:3], "libraries": libraries}
    if here != REFERENCE:
        pytest.skip(f"what {workload} has trained is not compared: {here}, and not {REFERENCE}")
    assert document["training"]["weights"][:12] == WEIGHTS[workload]


def test_the_starter_trains_the_network_that_is_noted(first):
    check_weights("vit", first)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What replaces the data and the weights of workloads that would download them."""
    root = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    data = {
        "data.path": draw_photos(root / "photos", each=24, size=40), "data.format": "folders",
    }  # fmt: skip
    vit, clip = hub.write_vit(root / "vit", 32), hub.write_clip(root / "clip", 32)
    more = {
        "beans": {"images.size": 32, "model.pretrained": vit},
        "mnist": {"model.config.embedding_size": 8, "model.config.hidden_sizes": [8, 8, 8, 8]},
        "doggos": {"images.size": 32, "model.pretrained": clip},
        "cifar10": {"model.hidden_size": 16, "model.layers": 1, "model.heads": 2},
    }
    return {
        name: [
            word for each in (data | values).items() for word in ("--set", "{}={}".format(*each))
        ]
        for name, values in more.items()
    }


@pytest.fixture(scope="module")
def examples(clone):
    """Those of `examples/`, as workloads of the clone, with short trainings."""
    for name in EXAMPLES:
        clone.retrain("init", "--example", name)
    shorten_trainings(clone.root)


@pytest.mark.slow
@pytest.mark.parametrize("workload", EXAMPLES)
def test_every_example_runs(clone, small, examples, workload):
    document = clone.train(*small.get(workload, ()), workload=workload)
    assert document["model"]["version"] >= 1
    assert (clone.root / "reports" / workload / f"{document['run']}.html").is_file()
    check_weights(workload, document)
