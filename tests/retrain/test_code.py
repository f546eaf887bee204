import textwrap
from pathlib import Path

import pytest

from retrain import code

STEP = """
    '''A step.'''
    from typing import TYPE_CHECKING
    from tasks.helper import double

    def step(x):
        '''Doubles.'''
        return double(x)  # why not
"""


@pytest.fixture
def write(tmp_path):
    """Writes modules of a package `tasks`, and others beside it."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")

    write("tasks/helper", "def double(x): return 2 * x")
    return write


@pytest.fixture
def digests(tmp_path):
    return lambda *modules: code.code_digests(modules or ["tasks.step"], root=tmp_path)


SAME = """
    from typing import TYPE_CHECKING
    from tasks.helper import (
        double,
    )
    # Another comment.
    if TYPE_CHECKING:
        from tasks.other import Number
    def step( x ):
        "Another docstring."

        return double(
            x)
"""


def test_comments_docstrings_formatting_and_code_for_type_checkers_do_not_count(write, digests):
    write("tasks/other", "class Number: pass")
    write("tasks/step", STEP)
    before = digests()
    write("tasks/step", SAME)
    assert digests() == before


TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    N = 1\nelse:\n    N = "
DIFFERENT = [
    "def step(x):\n    return x",
    "def step(x):\n    return -x",
    "def step(x=1):\n    return x",
    "def step(x):\n    print(x)\n    return x",  # it begins with no docstring
    "def step(x):\n    print(x, x)\n    return x",
    "def step(x):\n    return f'a{x}'",
    "def step(x):\n    return f'b{x}'",
    "def step(x):\n    return f'a{x!r}'",
    "if N:\n    M = 1",
    "if N:\n    M = 1\nelse:\n    M = 2",
    "if TYPES:\n    M = 1",
    f"{TYPES}2",
    f"{TYPES}3",
]


def test_what_code_does_is_in_its_digest(write, digests):
    found = set()
    for text in DIFFERENT:
        write("tasks/step", text)
        found.add(digests()["tasks.step"])
    assert len(found) == len(DIFFERENT)


def test_imports_are_followed_inside_functions_and_packages_and_beside_them(write, digests):
    for name in ("tasks/deep", "mine", "shared/numbers", "retrain", "tasks/other"):
        write(name, "N = 1")
    write("tasks/helper", "def double(x):\n    from . import deep\n    return deep.N * x")
    more = "\nimport json, mine, retrain, shared.numbers\nimport numpy as np"
    write("tasks/step", textwrap.dedent(STEP) + more)
    before = digests()
    assert set(before) == {
        "mine",
        "shared.numbers",
        "tasks.deep",
        "tasks.helper",
        "tasks.step",
    }
    for name in ("tasks/deep", "mine"):
        write(name, "N = 3")
        assert digests()[name.replace("/", ".")] != before[name.replace("/", ".")]
    assert set(digests("mine")) == {"mine"}  # as the module of a chosen function


def test_code_of_a_user_s_that_imports_by_a_name_has_all_modules_of_its_package(write, digests):
    write("team/__init__", "")
    write("team/loop", "import importlib; train = lambda c: importlib.import_module(c['losses'])")
    write("team/losses", "def mean(): return 1")
    write("team/deep/other", "from tasks.helper import double")
    before = digests("team.loop")
    assert before.keys() == {"team.loop", "team.losses", "team.deep.other", "tasks.helper"}
    write("team/losses", "def mean(): return 2")
    assert digests("team.loop")["team.losses"] != before["team.losses"]


# Of syntax.txt: found the same with Python 3.11.7, 3.12.1 and 3.13.0.
FROZEN = "17e0129a1b424f2c22fa2e92a25d354b81de4d43f5fe1a4be068bee768b85872"


def test_the_digest_is_the_same_in_every_version_of_python(write, digests):
    write("tasks/syntax", (Path(__file__).parent / "syntax.txt").read_text(encoding="utf-8"))
    assert digests("tasks.syntax") == {"tasks.syntax": FROZEN}


@pytest.fixture
def importable(write, tmp_path, monkeypatch):
    """Has the modules found as those of the project are."""
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def test_what_is_installed_below_the_root_is_not_followed(importable, tmp_path, monkeypatch):
    importable("site-packages/library_of_the_test", "N = 1")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    importable("user", "import library_of_the_test as library\nN = library.N")
    assert set(code.code_digests(["user"])) == {"user"}


def test_the_libraries_of_a_user_s_code_are_found_in_its_source(importable, monkeypatch):
    monkeypatch.setattr(code, "OWN", ("own",))  # a step names the libraries of the project's code
    importable("own", "import sklearn.metrics")
    importable("mine", "from PIL import Image\nimport not_installed_anywhere")
    importable(
        "user",
        """
        from typing import TYPE_CHECKING
        import os, ray.train
        from mine import Image
        import own
        if TYPE_CHECKING:
            import pandas
        raise RuntimeError("it is never imported")

        def train(config):
            import great_expectations.core
        """,
    )
    assert code.libraries_of(["user"]) == ("great-expectations", "pillow", "ray")
    assert code.libraries_of([]) == ()
