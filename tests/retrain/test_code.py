import ast
import gc
import sys
import textwrap
from pathlib import Path

import pytest

from retrain import code
from retrain.code import code_digests


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package `tasks` that hides the real one while the test runs."""
    monkeypatch.setattr(code, "ROOT", tmp_path)
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


class Parsing:
    """Parses each time the garbage collector runs, as another thread may in the middle."""

    def __init__(self, times):
        self.times = times
        self.itself = self

    def __del__(self):
        self.parse(calls=20)
        if self.times:
            Parsing(self.times - 1)

    def parse(self, calls):
        if calls:
            self.parse(calls - 1)
        else:
            ast.parse("x = [1, 2]")


def test_what_is_parsed_meanwhile_does_not_matter(package):
    package("step", "x = [1, 2]\n" * 1000)
    before = code_digests(["tasks.step"])
    code._read.cache_clear()
    threshold = gc.get_threshold()
    Parsing(times=20)
    gc.set_threshold(20)
    try:
        assert code_digests(["tasks.step"]) == before
    finally:
        gc.set_threshold(*threshold)


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


def test_a_module_beside_the_packages_is_followed(package, tmp_path):
    (tmp_path / "shared").mkdir()
    for name in ("mine", "shared/numbers", "retrain"):
        (tmp_path / f"{name}.py").write_text("N = 1")
    package("step", "import json, mine, retrain, shared.numbers\nimport numpy as np")
    before = code_digests(["tasks.step"])
    assert set(before) == {"mine", "shared.numbers", "tasks.step"}
    (tmp_path / "mine.py").write_text("N = 2")
    assert code_digests(["tasks.step"]) != before
    assert set(code_digests(["mine"])) == {"mine"}  # as the module of a chosen function


def test_what_is_installed_below_the_root_is_not_followed(package, tmp_path, monkeypatch):
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "library_of_the_test.py").write_text("N = 1")
    monkeypatch.syspath_prepend(str(installed))
    package("step", "import library_of_the_test as library\nN = library.N")
    assert set(code_digests(["tasks.step"])) == {"tasks.step"}


def test_a_module_that_is_left_out_is_not_followed_nor_what_it_alone_imports(package):
    package("drawing", "N = 1")
    package("plots", "from tasks import drawing")
    package("step", "from tasks import plots")
    assert set(code_digests(["tasks.step"], without=["tasks.plots"])) == {"tasks.step"}


def test_what_is_for_type_checkers_does_not_count(package):
    package("helper", "class Number: pass")
    package("step", "from typing import TYPE_CHECKING\nN: 'Number' = 1")
    before = code_digests(["tasks.step"])
    package(
        "step",
        """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from tasks.helper import Number
        N: 'Number' = 1
        """,
    )
    assert code_digests(["tasks.step"]) == before


# Of syntax.txt: found the same with Python 3.11.7, 3.12.1 and 3.13.0.
FROZEN = "17e0129a1b424f2c22fa2e92a25d354b81de4d43f5fe1a4be068bee768b85872"


def test_the_digest_is_the_same_in_every_version_of_python(package):
    package("syntax", (Path(__file__).parent / "syntax.txt").read_text(encoding="utf-8"))
    assert code_digests(["tasks.syntax"]) == {"tasks.syntax": FROZEN}


def test_the_libraries_of_a_user_s_code_are_found_in_its_source(package, tmp_path):
    package("own", "import sklearn.metrics")
    (tmp_path / "mine.py").write_text("from PIL import Image\nimport not_installed_anywhere")
    (tmp_path / "user.py").write_text(
        textwrap.dedent(
            """
            from typing import TYPE_CHECKING
            import os, ray.train
            from mine import Image
            from tasks import own
            if TYPE_CHECKING:
                import pandas
            raise RuntimeError("it is never imported")

            def train(config):
                import great_expectations.core
            """
        )
    )
    assert code.libraries_of(["user"]) == ("great-expectations", "pillow", "ray")
    assert code.libraries_of([]) == ()
