"""The manifests of outputs, as they are written."""

import json

import pytest

from retrain.outputs import write_manifest

FILES = [{"path": f"data/{number}", "bytes": number, "sha256": "ab"} for number in range(3)]


@pytest.mark.parametrize("files", [FILES, []], ids=["some", "none"])
def test_a_manifest_has_a_line_for_each_file_whatever_the_facts_are(tmp_path, files):
    manifest = {"digest": "ab", "facts": {"files": []}, "files": files, "plan": {"step": "pull"}}
    write_manifest(tmp_path / "manifest.json", manifest)
    text = (tmp_path / "manifest.json").read_text()
    assert json.loads(text) == manifest
    assert sum('"sha256"' in line for line in text.splitlines()) == len(files)
