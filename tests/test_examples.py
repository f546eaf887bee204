"""The examples, and what the docs show of them."""

import ast
import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import draw_photos

ROOT = Path(__file__).parents[1]


def source(name, function):
    text = (ROOT / "examples" / name).read_text()
    body = ast.parse(text).body
    found = next(each for each in body if getattr(each, "name", "") == function)
    return ast.get_source_segment(text, found).splitlines()


def test_the_docs_show_what_changes_in_a_function():
    scripts = (source(name, "train") for name in ("single_gpu.py", "ported.py"))
    lines = list(difflib.unified_diff(*scripts, lineterm="", n=1))[2:]
    assert "\n".join(lines) in (ROOT / "docs" / "port-your-loop.md").read_text()
    assert source("single_gpu.py", "build_model") == source("network.py", "build_model")


def test_the_script_before_it_is_ported_runs(tmp_path):
    for split in ("train", "val"):
        draw_photos(tmp_path / "photos" / split, classes=2, each=8, size=16)
    program = [sys.executable, ROOT / "examples" / "single_gpu.py", "photos"]
    said = subprocess.check_output(program, cwd=tmp_path, text=True)
    assert (tmp_path / "model.pt").exists()
    last = ast.literal_eval(said.splitlines()[-1].partition(" ")[2])
    assert last["val_accuracy"] == pytest.approx(1)
