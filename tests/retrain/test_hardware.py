import json

import joblib
import pytest

from retrain import hardware
from retrain.params import load_workload, resolve
from retrain.project import Project

PARAMS = """
workloads:
  small:
    data: {path: data}
    images: {size: 8, channels: 1}
    model: {family: vit, patch_size: 4, hidden_size: 64, layers: 2, heads: 4}
  large:
    data: {path: data}
    images: {size: 32}
    model: {family: vit, patch_size: 4, hidden_size: 192, layers: 6, heads: 3}
"""

CORES = int(joblib.cpu_count())
OWN = {"family": "custom", "factory": "a:b"}


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS)
    return path


def resolved(params, name, changes=None):
    return resolve(load_workload(params, name, changes), Project(params.parent))


@pytest.mark.parametrize(
    ("name", "has_bf16", "changes", "expected"),
    [
        ("large", True, {}, ("bf16", "bf16")),
        ("large", False, {}, ("fp32", "fp32")),
        ("small", True, {}, ("fp32", "fp32")),
        ("small", True, {"evaluate.batch_size": 65536}, ("fp32", "fp32")),  # it follows
        ("small", True, {"train.precision": "bf16"}, ("bf16", "bf16")),
        ("small", True, {"model": OWN, "train.function": "a:c"}, ("fp32", "fp32")),
        ("large", True, {"train.precision": "bf16", "evaluate.precision": "fp32"},
         ("bf16", "fp32")),
    ],
)  # fmt: skip
def test_large_work_is_done_in_what_the_processor_has_or_the_user_sets(
    params, monkeypatch, name, has_bf16, changes, expected
):
    monkeypatch.setattr(hardware, "has_bf16", lambda *_: has_bf16)
    workload = resolved(params, name, changes)
    assert (workload.train.precision, workload.evaluate.precision) == expected


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with another CPU and GPUs: what it says of them, the latter by `nvidia-smi`."""
    for name in ("gpus", "has_bf16", "machine"):  # which remember what they have found
        monkeypatch.setattr(hardware, name, getattr(hardware, name).__wrapped__)

    def is_one(cpu_flags="", capabilities=None, torch="2.13.0+cu130"):
        monkeypatch.setattr(hardware, "_cpu", lambda: f"flags : fpu {cpu_flags} sse\n")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(hardware, "version", lambda name: torch)
        monkeypatch.setenv("PATH", str(tmp_path))
        if capabilities is not None:
            driver = tmp_path / "nvidia-smi"
            says = [f"echo 'GPU-{n}a, L{n}, {each}'\n" for n, each in enumerate(capabilities)]
            driver.write_text("#!/bin/sh\n" + "".join(says))
            driver.chmod(0o755)

    return is_one


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({}, False),
        ({"cpu_flags": "avx512f avx512_bf16"}, True),
        ({"cpu_flags": "amx_bf16 amx_tile"}, True),
        ({"capabilities": ["9.0"]}, True),
        ({"capabilities": ["9.0", "7.5"], "cpu_flags": "amx_bf16"}, False),
        ({"capabilities": [], "cpu_flags": "amx_bf16"}, True),
        ({"capabilities": ["7.5"], "cpu_flags": "amx_bf16", "torch": "2.13.0+cpu"}, True),
        ({"capabilities": ["NVIDIA-SMI has failed because it could not reach the driver."]}, False),
        ({"capabilities": ["No devices were found"]}, False),
        ({"capabilities": ["[N/A]", "9.0"]}, True),
    ],
)
def test_the_gpu_counts_if_pytorch_can_use_one_and_else_the_cpu(machine, what, expected):
    machine(**what)
    assert hardware.has_bf16() is expected


@pytest.mark.parametrize(
    ("name", "changes", "capabilities", "expected"),
    [
        ("small", {}, None, 1),
        ("large", {}, None, CORES),
        ("large", {"scale.workers": 2, "train.batch_size": 512}, None, max(1, CORES // 2)),
        ("large", {"scale.workers": 2 * CORES, "train.batch_size": 512}, None, 1),
        # Where there is a GPU for each worker, the number changes nothing.
        ("small", {"scale.threads": 1}, ["9.0", "9.0"], None),
        ("small", {"scale.workers": 2}, ["9.0", "9.0"], None),
        ("small", {"scale.workers": 3, "train.batch_size": 60}, ["9.0", "9.0"], 1),
    ],
)
def test_a_small_step_takes_one_thread_and_a_large_one_the_workers_share(
    params, machine, name, changes, capabilities, expected
):
    machine(capabilities=capabilities)
    assert resolved(params, name, changes).scale.threads == expected


@pytest.mark.parametrize(
    ("visible", "order", "expected"),
    [
        (None, None, ["L1", "L2", "L0"]),
        ("0,2", None, ["L1", "L0"]),  # the fastest come first, unless they are to be as they are
        ("0,2", "PCI_BUS_ID", ["L0", "L2"]),
        ("1", "PCI_BUS_ID", ["L1"]),
        ("1,7", "PCI_BUS_ID", ["L1"]),
        ("GPU-2", None, ["L2"]),
        ("MIG-5", None, ["L0"]),  # a part of one of them
        ("-1", None, []),
    ],
)
def test_the_gpus_that_are_visible_are_judged(machine, monkeypatch, visible, order, expected):
    machine(capabilities=["8.0", "9.0", "9.0"])
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    assert [gpu.name for gpu in hardware.gpus()] == expected


def test_a_machine_is_described_for_the_record(machine):
    machine(cpu_flags="avx2 avx512f", capabilities=["9.0", "8.0"])
    told = hardware.machine()
    assert told["instructions"] == ["avx2", "avx512f"]
    assert told["accelerators"] == ["L0", "L1"]
    assert told["cores"] == CORES
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("flops", "workers", "cores", "expected"),
    [
        (1e9, 0, [4], 4),
        (0.99e9, 0, [4], 1),
        (2e9, 2, [4], 2),
        (1.9e9, 2, [4], 1),  # a worker's part of a batch decides
        (9e9, 5, [4], 1),
        (9e9, 3, [8, 4], 2),
        (9e9, 4, [8, 8], 4),
    ],
)
def test_the_workers_share_the_cores_of_the_smallest_machine(flops, workers, cores, expected):
    nodes = tuple(hardware.Node(cores=each, gpus=(), has_bf16=True) for each in cores)
    assert hardware.threads(flops, workers, "auto", nodes) == expected
    assert hardware.threads(flops, workers, 3, nodes) == 3


LARGE_MACHINE = {"cores": 16, "gpus": [], "has_bf16": True}


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([LARGE_MACHINE], 2, ("bf16", 8)),
        ([LARGE_MACHINE, LARGE_MACHINE | {"cores": 8, "has_bf16": False}], 2, ("fp32", 8)),
        ([LARGE_MACHINE | {"gpus": [9.0]}, LARGE_MACHINE | {"gpus": [7.5]}], 2, ("fp32", None)),
        ([LARGE_MACHINE | {"gpus": [7.5]}], 2, ("bf16", 8)),  # too few GPUs for the workers
    ],
)
def test_the_machines_of_a_cluster_decide_for_its_workers(
    params, machine, monkeypatch, nodes, workers, expected
):
    machine()
    here = resolved(params, "large")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    kept = {"address": "10.0.0.1:6379", "nodes": dict(enumerate(nodes))}
    (params.parent / ".retrain").mkdir()
    (params.parent / ".retrain" / "cluster.json").write_text(json.dumps(kept))
    large = resolved(params, "large", {"scale.workers": workers})
    assert (large.train.precision, large.scale.threads) == expected
    assert resolved(params, "large").train == here.train  # in the run's own process
