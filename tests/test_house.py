"""The rules of the house: who may import whom, and what is not imported until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "models", "retrain", "tasks")
MAY_IMPORT = {
    "flows": {"flows", "tasks", "retrain"},
    "tasks": {"tasks", "models", "retrain"},
    "models": {"models"},
    "retrain": {"retrain"},
}
HEAVY = {
    "torch", "ray", "transformers", "mlflow", "great_expectations", "dvc", "pandas", "sklearn",
    "matplotlib",
}  # fmt: skip
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imported(tree: ast.AST) -> set[str]:
    """The top-level names of the packages that a piece of code imports."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_imports_only_what_it_may(path):
    package = path.relative_to(ROOT).parts[0]
    allowed = MAY_IMPORT[package] | (
        {"flows"} if path.is_relative_to(ROOT / "retrain" / "cli") else set()
    )
    # A workload is read with the settings of its family, which the family declares.
    allowed |= {"models"} if path == ROOT / "retrain" / "workload.py" else set()
    ours = imported(ast.parse(path.read_text())) & set(PACKAGES)
    assert ours <= allowed


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_listed_for_installation(package):
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(listed)


def test_the_flow_is_imported_without_heavy_libraries():
    program = "import flows.train, sys; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & HEAVY == set()
