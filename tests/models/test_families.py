import subprocess
from pathlib import Path

import pytest

from models.families import FAMILIES, flops, settings_class
from tests import warm_python

ROOT = Path(__file__).parents[2]
LEAST = {
    "auto": {"config": {"model_type": "vit"}},
    "embedding_head": {"pretrained": "owner/name"},
    "custom": {"factory": "examples.network:build_model"},
    "vit": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_declared_and_has_all_of_the_interface(family):
    from importlib import import_module

    module = import_module(f"models.{family}")
    assert settings_class(family) is module.Settings
    settings, shape = LEAST[family], (224, 224, 3)
    assert flops(family, settings, shape) == module.flops(module.Settings(**settings), shape) > 1e9
    assert callable(module.build) and callable(module.rebuild)


def test_settings_and_flops_of_all_families_are_known_without_torch():
    program = (
        "import sys; from models.families import FAMILIES, faults, flops;"
        f"least, shape = {LEAST}, (224, 224, 3);"
        "[flops(family, least[family], shape) for family in FAMILIES];"
        "[faults(family, least[family], shape) for family in FAMILIES];"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [warm_python.REAL, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"
