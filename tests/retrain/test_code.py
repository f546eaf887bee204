import sys
import textwrap

import pytest

from retrain.code import code_digests


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package `tasks` that hides the real one while the test runs."""
    root = tmp_path / "tasks"
    root.mkdir()
    (root / "__init__.py").write_text("")
    hidden = {n: m for n, m in sys.modules.items() if n == "tasks" or n.startswith("tasks.")}
    for name in hidden:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        (root / f"{name}.py").write_text(textwrap.dedent(text))

    yield write
    for name in [n for n in sys.modules if n == "tasks" or n.startswith("tasks.")]:
        sys.modules.pop(name)
    sys.modules.update(hidden)


STEP = """
    '''A step.'''
    from tasks.helper import double

    def step(x):
        '''Doubles.'''
        return double(x)  # why not
"""


def test_comments_docstrings_and_formatting_do_not_count(package):
    package("helper", "def double(x): return 2 * x")
    package("step", STEP)
    before = code_digests(["tasks.step"])
    package(
        "step",
        """
        from tasks.helper import (
            double,
        )
        # Another comment.
        def step( x ):
            "Another docstring."

            return double(
                x)
        """,
    )
    assert code_digests(["tasks.step"]) == before


def test_the_logic_counts_and_is_named(package):
    package("helper", "def double(x): return 2 * x")
    package("step", STEP)
    before = code_digests(["tasks.step"])
    package("step", STEP.replace("double(x)", "double(x) + 1"))
    after = code_digests(["tasks.step"])
    assert before.keys() == after.keys() == {"tasks.helper", "tasks.step"}
    assert before["tasks.step"] != after["tasks.step"]
    assert before["tasks.helper"] == after["tasks.helper"]


def test_helpers_are_followed_through_imports_inside_functions_and_packages(package):
    package("deep", "N = 1")
    package("helper", "def double(x):\n    from . import deep\n    return deep.N * x")
    package("step", STEP)
    package("other", "N = 2")
    before = code_digests(["tasks.step"])
    package("deep", "N = 3")
    after = code_digests(["tasks.step"])
    assert before["tasks.deep"] != after["tasks.deep"]
    assert "tasks.other" not in after
