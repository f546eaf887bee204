"""Nothing that is read can bring code along: no pickle, in none of its disguises."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "models", "retrain", "tasks")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

UNSAFE = re.compile(
    r"""
    ^[ ]*(?:import|from)\b.*\b(pickle|cloudpickle|dill|marshal|shelve)\b
    | (torch\.load)\((?!.*weights_only=True)
    | (allow_pickle)=(?!False)
    | (typ)=(?!'safe')  # of ruamel.yaml
    | \b(read_pickle|unsafe_load|full_load|joblib\.load)\(
    | ((?:\w+\.)+load_model)\(  # of MLflow
    | (persist_result|result_serializer)=(?!False)  # of Prefect
    """,
    re.VERBOSE | re.MULTILINE,
)

# What goes between processes of one run; and the packages of the registry, which are code.
ALLOWED = {
    "tasks/compute/ray_data.py": ["pickle"],
    "retrain/servers/scoring.py": ["mlflow.pyfunc.load_model"] * 2,  # to answer, and to check
    "tasks/compute/scoring_worker.py": ["mlflow.pyfunc.load_model"],
    "tasks/train/stream.py": ["pickle"],
}


def unsafe(source: str) -> list[str]:
    """What in a module's source may run what it reads; each call is on a line of its own."""
    return ["".join(found) for found in UNSAFE.findall(ast.unparse(ast.parse(source)))]


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
