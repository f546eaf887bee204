import subprocess
import sys
from pathlib import Path

import pytest

import models
from models.families import FAMILIES, settings_class

ROOT = Path(__file__).parents[2]
LEAST = {
    "auto": {"config": {"model_type": "vit"}},
    "embedding_head": {"pretrained": "owner/name"},
    "custom": {"factory": "examples.network:build_model"},
    "vit": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_settings_and_makes_a_saved_network_again(family):
    settings = models.make(family, LEAST[family])
    assert type(settings) is settings_class(family)
    assert settings.flops((224, 224, 3)) > 1e9
    module = models.modules_of(family, settings.model_dump())[0]
    assert (ROOT / f"{module.replace('.', '/')}.py").is_file()


def test_settings_and_flops_of_all_families_are_known_without_torch():
    program = (
        "import sys, models; from models.families import FAMILIES;"
        f"least, shape = {LEAST}, (224, 224, 3);"
        "known = [models.make(name, least[name]) for name in FAMILIES];"
        "[(each.flops(shape), each.training_flops(shape), each.faults(shape)) for each in known];"
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
