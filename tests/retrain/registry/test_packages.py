from types import SimpleNamespace

import pytest

from retrain.registry import packages, tracking
from tests.retrain.registry.helpers import WEIGHTS, register


@pytest.mark.parametrize("is_here", [True, False])
def test_a_version_is_brought_back_from_the_registry_alone(
    project, name, tmp_path, monkeypatch, is_here
):
    made = register(project, name, "a", tmp_path)
    if not is_here:  # as if MLflow's artifacts were on another machine
        monkeypatch.setattr(tracking, "local_path", lambda _: None)
    package = packages.download(project, made)
    assert package.is_relative_to(project.state / "champions") != is_here
    assert (package / "MLmodel").is_file()
    weights = package / packages.MODEL / packages.WEIGHTS
    assert weights.read_bytes() == WEIGHTS + b"a"
    weights.write_bytes(b"other")
    if not is_here:  # the copy is made anew
        assert packages.download(project, made) == package
        assert weights.read_bytes() == WEIGHTS + b"a"
        return
    with pytest.raises(ValueError, match="version 1 are not those that were registered"):
        packages.download(project, made)
    weights.unlink()
    with pytest.raises(ValueError, match="version 1 are gone"):
        packages.download(project, made)


def test_each_file_of_a_package_is_missed_and_so_is_a_part_of_it(project, name, tmp_path):
    made = register(project, name, "a", tmp_path)
    assert packages.fault(project, made) is None
    package = packages.fetch(project, made, tmp_path)
    for file in (package / "MLmodel", package / packages.MODEL / packages.WEIGHTS):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        what = f"{file} has another size than it was registered with"
        remedy = packages.REMEDY.format(name=name)
        said = f"{made.title} cannot be served: {what}. {remedy}"
        assert packages.fault(project, made) == said
        file.unlink()
        assert packages.fault(project, made) == said.replace(what, f"{file} is gone")
        file.write_bytes(whole)


CARD = "# Card\n\n## Decision of the gate\n\ntwice\n\n## Use\n\nlast\n"
RULES = [
    {"rule": "accuracy >= 0.9", "value": 0.95, "passed": True},
    {"rule": "margin", "says": "is unknown", "passed": None},
]


@pytest.mark.parametrize(
    ("considered", "card", "shown"),
    [
        ({}, None, ["Promoted."]),
        ({}, CARD, ["Promoted.", "# Card", "## Use", "last"]),
        (
            {"rules": RULES, "says": ["It is new."]},
            None,
            ["Promoted.", "- accuracy >= 0.9: is 0.9500, passed",
             "- margin: is unknown, cannot tell", "It is new."],
        ),
    ],
)  # fmt: skip
def test_the_description_of_a_version_is_its_decision_and_its_card(considered, card, shown):
    text = packages.description(SimpleNamespace(), "Promoted.", considered, card)
    assert [*filter(None, text.splitlines())] == shown


def test_a_description_is_as_long_as_mlflow_takes_it():
    version = SimpleNamespace(package_digest="ab")
    for lines in (80, 120):
        card = ("x" * 49 + "\n") * lines
        text = packages.description(version, "Promoted.", {}, card)
        assert len(text) <= packages.LONGEST_DESCRIPTION
        assert text.endswith("(The rest is in the run's artifacts: `card/ab.md`)") == (lines == 120)
        assert len(text) > packages.LONGEST_DESCRIPTION - 60 or text.endswith(card)
