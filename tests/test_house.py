"""The rules of the house: who may import whom, and what is not imported until it is used."""

import ast
import graphlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import resolve_name
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
# The arrows that lead out of `retrain`.
MAY_IMPORT_TOO = {
    "retrain/cli": {"flows"},  # a command runs a flow
    "retrain/params.py": {"models"},  # a family declares its settings
    "retrain/workload/training.py": {"models"},  # what a name of the user's code looks like
}
SHARED_ROOMS = {"data", "compute"}  # of `tasks`: what any step's room may import
HEAVY = {
    "torch", "ray", "transformers", "mlflow", "great_expectations", "dvc", "pandas", "sklearn",
    "matplotlib", "optuna",
}  # fmt: skip
MAX_LINES, MAX_FUNCTION_LINES = 400, 60
PATHS = [
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
]


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in PATHS}


def imports(path: Path) -> Iterator[str]:
    """The modules of ours that a module imports anywhere, inside functions and for types too."""
    package = ".".join(path.parts[:-1])
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            # `from tasks.data import shards` names a module, unless it names what is in one.
            below = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else base for name in below]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


def test_a_package_imports_only_what_it_may():
    for path in PATHS:
        allowed = set(MAY_IMPORT[path.parts[0]])
        for place, more in MAY_IMPORT_TOO.items():
            if path.is_relative_to(place):
                allowed |= more
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path


def test_a_room_imports_no_step_s_room_but_its_own():
    for path in PATHS:
        if path.parts[0] == "tasks" and len(path.parts) > 2:
            rooms = {name.split(".")[1] for name in imports(path) if name.startswith("tasks.")}
            assert rooms <= SHARED_ROOMS | {path.parts[1]}, path


def test_no_imports_go_in_a_circle():
    graph = {name: set(imports(path)) - {name} for name, path in MODULES.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


def test_retrain_knows_no_step_by_name():
    flows = {path.stem for path in (ROOT / "flows").glob("*.py")}
    steps = {path.name for path in (ROOT / "tasks").iterdir() if (path / "step.py").is_file()}
    assert len(steps) >= 7
    named = {
        (str(path), node.value)
        for path in PATHS
        if path.parts[0] == "retrain"
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.Constant) and node.value in steps - flows
    }
    assert named == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_listed_for_installation(package):
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}
    assert {".".join(folder.parts) for folder in folders} <= set(listed)


def test_the_flows_are_imported_without_heavy_libraries():
    program = (
        "import importlib, flows, pkgutil, sys;"
        "[importlib.import_module(name) for _, name, _ in"
        " pkgutil.iter_modules(flows.__path__, 'flows.')];"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & HEAVY == set()


def test_a_module_and_its_functions_are_short():
    for path in PATHS:
        code = (ROOT / path).read_text(encoding="utf-8")
        assert len(code.splitlines()) <= MAX_LINES, path
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, (path, node.name)
