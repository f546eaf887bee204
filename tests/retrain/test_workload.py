import pytest

from retrain.workload import Workload


def workload(**sections) -> Workload:
    least = {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}
    return Workload.model_validate(least | sections)


def test_defaults_fill_what_is_left_out():
    assert workload().train.batch_size == 64
    flat = workload().flat()
    assert flat["data.split.val"] == 0.1
    assert flat["gate.min"] == {}


def test_a_workload_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        workload().train.lr = 1.0  # type: ignore[misc]


def test_the_classes_that_a_model_may_drop_are_a_list_of_names():
    assert workload().gate.may_drop == ()
    assert workload(gate={"may_drop": ["ant", "bee"]}).gate.may_drop == ("ant", "bee")
    with pytest.raises(ValueError, match=r"gate\.may_drop"):
        workload(gate={"may_drop": "ant"})


def test_a_model_is_promoted_by_itself_unless_a_person_has_to_approve_it():
    assert workload().gate.approval == "automatic"
    assert workload(gate={"approval": "manual"}).gate.approval == "manual"
    with pytest.raises(ValueError, match=r"gate\.approval"):
        workload(gate={"approval": True})


def test_the_outcomes_that_promote_are_a_list():
    assert workload(gate={"promotes": ["better"]}).gate.promotes == ("better",)
    with pytest.raises(ValueError, match=r"gate\.promotes"):
        workload(gate={"promotes": ["best"]})


@pytest.mark.parametrize("name", ["max_latency_ms", "max_package_mb"])
def test_a_bound_on_time_or_size_is_above_zero(name):
    assert getattr(workload().gate, name) is None
    assert getattr(workload(gate={name: 50}).gate, name) == 50
    with pytest.raises(ValueError, match=rf"gate\.{name}"):
        workload(gate={name: 0})


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"path": "."}}, "data.path: names no data"),
        ({"data": {"path": " "}}, "data.path: names no data"),
        (
            {"data": {"path": "x", "split": {"val": 0.5, "test": 0.5}}},
            "data.split: val and test together leave",
        ),
        (
            {"data": {"path": "x", "group": "(p"}},
            "data.group: (p is no regular expression: missing )",
        ),
        (
            {"data": {"path": "x", "time": "(?:p)"}},
            "data.time: (?:p) is a regular expression without",
        ),
        ({"images": {"margin": 32}}, "images.margin: is for train.augment.crop on prepared images"),
        (
            {"images": {"margin": 32, "storage": "source"}, "train": {"augment": {"crop": 0.5}}},
            "images.margin: is for train.augment.crop on prepared images",
        ),
        (
            {"train": {"augment": {"shift": 224}}},
            "train.augment.shift 224 must be smaller than images.size",
        ),
        (
            {"scale": {"workers": 65}},
            "train.batch_size 64 is less than an image for each of 65 workers",
        ),
        ({"scale": {"workers": 2}, "train": {"micro_batch": 33}}, "more than a worker's part"),
        (
            {"images": {"storage": "source"}, "scale": {"ingest": "dataloader"}},
            "scale.ingest: is for prepared images",
        ),
    ],
)
def test_values_that_do_not_go_together_are_faults(sections, said):
    [fault] = workload(**sections).faults()
    assert said in fault


def test_values_that_go_together_are_no_faults():
    together = {"scale": {"workers": 2}, "train": {"micro_batch": 32, "augment": {"shift": 223}}}
    assert list(workload(**together).faults()) == []
    assert list(workload(images={"storage": "source"}).faults()) == []
