"""The version of pretrained weights: of folders here, and of a hub on this machine."""

import io
import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from models import pretrained, vit
from models.pretrained import find_version
from tests.tasks.pull.pulling import serving

ROOT = Path(__file__).parents[2]
CONFIG = b'{"model_type": "vit"}'
SHA = "0123456789abcdef0123456789abcdef01234567"
SHAS = {
    f"/me/vit/resolve/{name}/config.json": sha
    for name, sha in (("main", SHA), ("v1", SHA[::-1]), (SHA, SHA), (SHA[::-1], SHA[::-1]))
}


WEIGHTS = save({"weight": np.zeros(4)})


def write(folder: Path, weights: bytes = WEIGHTS, **config) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tiny = {"model_type": "vit", "image_size": 8, "hidden_size": 16, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(tiny | config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


@pytest.mark.parametrize(
    ("change", "is_the_same"),
    [
        (lambda start: (start / "README.md").write_text("# About"), True),
        (lambda start: write(start, save({"weight": np.ones(4)})), False),
        (lambda start: write(start, layer_norm_eps=1e-6), False),
    ],
)
def test_a_folder_has_the_version_of_the_files_that_are_read(tmp_path, change, is_the_same):
    start = write(tmp_path / "start")
    before = find_version("start", tmp_path)
    change(start)
    assert (find_version(str(start), Path("/elsewhere")) == before) is is_the_same


def declared(**settings):
    return vit.Settings(**({"pretrained": "start"} | settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pretrained": "missing/twice/over"}, r"there is no folder missing/twice/over\.$"),
        ({"pretrained_version": "a" * 64}, r"start does not hold model\.pretrained_version aaa"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, settings, said):
    write(tmp_path / "start")
    with pytest.raises(ValueError, match=rf"^model\.pretrained: {said}"):
        declared(**settings).find_version(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_config_that_cannot_be_read_is_found_before_it_is_loaded(tmp_path, content):
    (write(tmp_path / "start") / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"^model\.pretrained: start: .*/start"):
        declared().check_network((8, 8, 3), tmp_path)


def by_pytorch(**options) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(4)}, file, **options)
    return file.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
ARCHIVE = by_pytorch()
PICKLED = by_pytorch(_use_new_zipfile_serialization=False)  # as PyTorch did until 2020


@pytest.mark.parametrize(
    ("name", "whole", "damaged", "said"),
    [
        ("model.safetensors", WEIGHTS, POINTER, r"is a Git LFS pointer .*: git lfs pull"),
        ("pytorch_model.bin", ARCHIVE, POINTER, r"is a Git LFS pointer .*: git lfs pull"),
        ("model-00002-of-00002.safetensors", WEIGHTS, WEIGHTS[:-9], "is damaged or cut short"),
        ("model.safetensors", WEIGHTS, b"", "is damaged or cut short"),
        ("model.safetensors", WEIGHTS, b"<html>" * 9, "is damaged or cut short"),
        ("pytorch_model.bin", ARCHIVE, ARCHIVE[:-9], "is damaged or cut short"),
        ("pytorch_model.bin", PICKLED, b"", "is damaged or cut short"),
    ],
    ids=range(7),  # and not the bytes
)
def test_weights_that_are_not_there_whole_are_found_when_a_workload_is_read(
    tmp_path, name, whole, damaged, said
):
    start = write(tmp_path / "start")
    (start / "model.safetensors").unlink()
    (start / name).write_bytes(whole)
    assert declared().find_version(tmp_path) == find_version("start", tmp_path)
    (start / name).write_bytes(damaged)
    with pytest.raises(ValueError, match=rf"^model\.pretrained: start: {name} {said}"):
        declared().find_version(tmp_path)


class Hub(BaseHTTPRequestHandler):
    """The requests for the configuration of a model, which name its commit."""

    def do_HEAD(self):
        sha = SHAS.get(self.path.partition("?")[0])
        missing = "RevisionNotFound" if "/me/vit/" in self.path else "RepoNotFound"
        found = {"X-Repo-Commit": sha, "ETag": f'"{sha}"', "Content-Length": str(len(CONFIG))}
        self.send_response(200 if sha else 404)
        for header in (found if sha else {"X-Error-Code": missing}).items():
            self.send_header(*header)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(CONFIG)

    def log_message(self, *_):
        pass


# Reads its environment when it is imported, so that each hub takes a process.
ASK = """
import json, sys
from pathlib import Path
from models.pretrained import find_version
for name in sys.argv[1:]:
    try:
        print(find_version(name, Path()))
    except (FileNotFoundError, ConnectionError) as error:
        print(type(error).__name__, error)
"""


def ask(tmp_path, endpoint, *names):
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(tmp_path)}
    return subprocess.check_output(
        [Path(sys.prefix, "bin", "python"), "-c", ASK, *names], cwd=ROOT, env=environment, text=True
    ).splitlines()


MISSING = (
    "FileNotFoundError there is no folder {}, and the Hugging Face hub gives no such model at "
    "revision {}; if it is private or gated, log in first: hf auth login"
)


def test_a_model_on_the_hub_has_the_version_of_its_commit(tmp_path):
    pin = "f" * 40
    with serving(Hub) as endpoint:
        names = ("me/vit", "me/vit@v1", f"me/vit@{pin}", "me/vit@v2", "me/other")
        found = ask(tmp_path, endpoint, *names)
    missing = [MISSING.format("me/vit", "v2"), MISSING.format("me/other", "main")]
    assert found == [SHA, SHA[::-1], pin, *missing]


def test_without_the_hub_its_cache_on_this_machine_is_asked(tmp_path, monkeypatch):
    kept = tmp_path / "models--me--vit"
    write(kept / "snapshots" / SHA)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(SHA)
    assert ask(tmp_path, "http://127.0.0.1:9", "me/vit", "me/other") == [
        SHA,
        "ConnectionError there is no folder me/other, and the Hugging Face hub cannot be reached",
    ]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError):
        pretrained.read_config("me/vit", SHA[::-1], tmp_path)
    assert pretrained.read_config("me/vit@v1", SHA, tmp_path).hidden_size == 16
