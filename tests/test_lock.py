"""The locked versions are those that the project declares, with a digest for each file."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LEFT_TO_PIP = {"torch", "mpmath", "sympy"}  # PyTorch's build differs between systems


def locked(name: str) -> dict[str, str]:
    """The versions in a lock file, by the names of their distributions."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements.lock", ("s3", "servers")),
        ("requirements-dev.lock", ("dev", "heif", "onnx", "s3", "servers")),
    ],
)
def test_what_is_declared_is_locked_within_its_range(lock, extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"]]
    declared += [each for extra in extras for each in project["optional-dependencies"][extra]]
    versions = locked(lock)
    assert versions.keys().isdisjoint(LEFT_TO_PIP)
    for requirement in map(Requirement, declared):
        name = canonicalize_name(requirement.name)
        if name not in LEFT_TO_PIP:
            assert requirement.specifier.contains(versions[name]), requirement


def test_what_develops_has_the_same_versions_as_what_runs():
    runs, develops = locked("requirements.lock"), locked("requirements-dev.lock")
    assert runs == {name: develops[name] for name in runs}
