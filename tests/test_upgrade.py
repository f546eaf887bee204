"""A team takes a newer version of the project, with its own files as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.init import add_example
from retrain.params import load_workload
from retrain.project import Project
from tests.tasks.pull.pulling import git
from tests.templates import copy_working_tree

pytestmark = pytest.mark.slow

NETWORK = """
from torch import nn


def build_model(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
TEST = """
from team.network import build_model


def test_the_network_has_an_output_for_each_class():
    assert build_model(3)[1].out_features == 3
"""
# What a newer version changes: the first and the last lines of what is shipped, and all between.
DEPLOYMENT = """\
  - name: new
    entrypoint: flows/train.py:train
    parameters: {workload: vit}
    work_pool: {name: local}
"""


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_a_newer_version_is_merged_without_conflicts_and_plans_the_teams_workload(tmp_path):
    upstream, clone = copy_working_tree(tmp_path / "upstream"), tmp_path / "clone"
    git(upstream, "add", "-A")
    git(upstream, "commit", "-q", "-m", "a version")
    git(tmp_path, "clone", "-q", "upstream", "clone")
    add_example(Project(clone), "custom")
    edit(clone / "params.yaml", "examples.network:build_model", "team.network:build_model")
    edit(clone / "params.yaml", "      arguments:\n        channels: 1\n", "")
    (clone / "team" / "network.py").write_text(NETWORK)
    (clone / "team" / "tests" / "test_network.py").write_text(TEST)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "our workload")
    edit(upstream / "params.yaml", "workloads:\n", "# new\nworkloads:\n")
    edit(upstream / "params.yaml", "trials: 20\n", "trials: 30\n")
    edit(upstream / "prefect.yaml", "\n\n  # ---", f"\n{DEPLOYMENT}\n  # ---")
    git(upstream, "commit", "-qam", "a newer version")

    git(clone, "pull", "-q", "--no-rebase", "--no-edit")

    assert load_workload(clone / "params.yaml", "vit").tune.trials == 30
    deployments = (clone / "prefect.yaml").read_text()
    assert DEPLOYMENT in deployments
    assert "    name: custom\n" in deployments
    run = [sys.executable, "-m", "retrain.cli", "train", "custom", "--dry-run", "--json"]
    plan = json.loads(subprocess.run(run, cwd=clone, check=True, capture_output=True).stdout)
    assert plan["outcome"] == "pull would be the first step to run: first run."
    tests = [sys.executable, "-m", "pytest", "-q", "team"]
    assert "1 passed" in subprocess.run(tests, cwd=clone, capture_output=True, text=True).stdout
