"""A team that cloned an older version takes the present one, with its own files as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OLDER = "00e3416"  # the first version with a folder for the team's own files

WORKLOAD = """
workloads:
  ours:
    data: {path: data/digits}
    checks: {}
    images: {size: 8, channels: 1}
    model: {family: custom, factory: "team.network:build_model"}
    train: {epochs: 2}
    scale: {workers: 0}
    evaluate: {}
    gate: {}
"""
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


def git(clone: Path, *arguments: str) -> str:
    named = ("-c", "user.name=team", "-c", "user.email=team@example.org")
    done = subprocess.run(
        ["git", *named, *arguments], cwd=clone, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_a_newer_version_is_merged_without_conflicts_and_plans_the_teams_workload(tmp_path):
    known = subprocess.run(["git", "cat-file", "-e", f"{OLDER}^{{commit}}"], cwd=ROOT, check=False)
    if known.returncode:
        pytest.skip("this clone does not have the older version (it is shallow, or no git clone)")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(ROOT), str(clone))
    present = git(clone, "rev-parse", "HEAD")
    git(clone, "checkout", "-q", "-b", "ours", OLDER)
    (clone / "team" / "params.yaml").write_text(WORKLOAD)
    (clone / "team" / "network.py").write_text(NETWORK)
    (clone / "team" / "tests" / "test_network.py").write_text(TEST)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "our workload")

    git(clone, "merge", "-q", "--no-edit", present)

    assert (clone / "team" / "params.yaml").read_text() == WORKLOAD
    run = [sys.executable, "-m", "retrain.cli", "train", "--dry-run", "--json"]
    plans = json.loads(subprocess.run(run, cwd=clone, check=True, capture_output=True).stdout)
    assert plans["ours"]["outcome"] == "pull would be the first step to run: first run."
    assert "vit" in plans
    tests = [sys.executable, "-m", "pytest", "-q", "team"]
    assert "1 passed" in subprocess.run(tests, cwd=clone, capture_output=True, text=True).stdout
