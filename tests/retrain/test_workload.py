import pytest

from retrain.workload import Workload


def workload(**sections) -> Workload:
    least = {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}
    return Workload.model_validate(least | sections)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
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
            {"images": {"storage": "source"}, "train": {"balance": "sampling"}},
            "train.balance: sampling is for prepared images",
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
