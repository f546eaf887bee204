"""Nothing that is read can bring code along: no pickle, in none of its disguises."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "models", "retrain", "tasks")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

UNPICKLE = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
LOADS = {"read_pickle", "unsafe_load", "full_load", "load_model"}

# What goes between processes of one run; and the packages of the registry, which are code.
ALLOWED = {
    "tasks/compute/ray_data.py": ["pickle"],
    "retrain/servers/scoring.py": ["mlflow.pyfunc.load_model"] * 2,  # to answer, and to check
    "tasks/compute/scoring_worker.py": ["mlflow.pyfunc.load_model"],
    "tasks/train/stream.py": ["pickle"],
}


def unsafe(source: str) -> list[str]:
    """What in a module's source may run what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = {name.split(".")[0] for name in [*names, getattr(node, "module", "") or ""]}
            found += sorted(modules & UNPICKLE)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            call = ast.unparse(node.func)
            keywords = {each.arg: ast.unparse(each.value) for each in node.keywords}
            if call == "torch.load" and keywords.get("weights_only") != "True":
                found.append(call)
            if keywords.get("allow_pickle", "False") != "False":
                found.append(f"{call} with allow_pickle")
            if keywords.get("typ", "'safe'") != "'safe'":
                found.append(f"{call} with typ")
            if node.func.attr in LOADS or call == "joblib.load":
                found.append(call)
        elif isinstance(node, ast.keyword) and node.arg in ("persist_result", "result_serializer"):
            value = ast.unparse(node.value)
            found += [f"{node.arg}={value}"] * (value != "False")
    return found


def test_no_module_loads_what_can_run_code():
    found = {str(path.relative_to(ROOT)): unsafe(path.read_text()) for path in MODULES}
    assert {name: calls for name, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "YAML(typ='unsafe').load(text)\nyaml.YAML(typ='unsafe')",
        "pd.read_pickle(path)",
        "joblib.load(path)",
        "Task(run, persist_result=step.cached)",
    ],
)
def test_what_can_run_code_is_noticed(source):
    assert unsafe(source) != []
