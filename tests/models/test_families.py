import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from models.families import FAMILIES, flops

ROOT = Path(__file__).parents[2]
INTERFACE = ("build", "library_faults", "pretrained_faults", "pretrained_version", "rebuild")
LEAST = {
    "auto": {"config": {"model_type": "vit"}},
    "embedding_head": {"pretrained": "owner/name"},
    "custom": {"factory": "examples.network:build_model"},
    "vit": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_all_of_the_interface(family):
    module = import_module(f"models.{family}")
    _, whole = flops(module, module.Settings(**LEAST[family]), (224, 224, 3))
    assert whole > 1e9
    assert all(callable(getattr(module, name)) for name in INTERFACE)


def test_settings_and_flops_of_all_families_are_known_without_torch():
    program = (
        "import sys; from models.families import FAMILIES, faults, flops, module_of;"
        f"least, shape = {LEAST}, (224, 224, 3);"
        "modules = {name: module_of(name) for name in FAMILIES};"
        "known = [(each, each.Settings(**least[name])) for name, each in modules.items()];"
        "[(flops(*each, shape), faults(*each, shape)) for each in known];"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [Path(sys.prefix, "bin", "python"), "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "set()"
