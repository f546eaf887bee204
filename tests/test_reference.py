from pathlib import Path

import jsonschema
import pytest

from retrain.params import parse_yaml
from retrain.workload import Workload
from scripts.reference import json_schema, parameters

SHIPPED = Path(__file__).parents[1] / "params.yaml"


def test_every_parameter_has_a_description_and_its_default():
    assert not [each.name for each in parameters() if not each.description]
    by_name = {each.name: each for each in parameters() if each.family is None}
    flat = Workload.model_validate(
        {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}
    ).flat()
    for name, value in flat.items():
        if name not in ("name", "data.path", "model.family"):
            assert by_name[name].default == value, name


def test_the_schema_takes_the_shipped_file_and_refuses_what_a_run_would_refuse():
    shipped = parse_yaml(SHIPPED.read_text(encoding="utf-8"))
    jsonschema.validate(shipped, json_schema())
    for section, wrong in (("train", {"epoch": 3}), ("train", {"lr": "fast"}), ("modl", {})):
        tree = {"workloads": {"vit": shipped["workloads"]["vit"] | {section: wrong}}}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tree, json_schema())
