from retrain import tracking
from retrain.registry import decisions, versions
from tests.retrain.registry.helpers import decision, register


def test_the_description_of_a_rejected_version_has_the_reason(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    failed = {"rule": "accuracy >= 0.99", "value": 0.95, "bound": 0.99, "passed": False}
    rejected = decisions.apply(project, made, decision(1, "rejected", document={"rules": [failed]}))
    assert versions.champion(project, name) is None
    assert rejected.verdict == "not better"
    description = tracking.client(project).get_model_version(name, "1").description
    assert "**Rejected**" in description
    assert "accuracy >= 0.99: is 0.9500, **failed**" in description
