"""The manifests of outputs, as they are written; what is said of their files."""

import json

import pytest

from retrain.outputs import list_files, save_manifest

FILES = [{"path": f"data/{number}", "bytes": number, "sha256": "ab"} for number in range(3)]


@pytest.mark.parametrize("files", [FILES, []], ids=["some", "none"])
def test_a_manifest_has_a_line_for_each_file_whatever_the_facts_are(tmp_path, files):
    manifest = {"digest": "ab", "facts": {"files": []}, "files": files, "plan": {"step": "pull"}}
    save_manifest(tmp_path / "manifest.json", manifest)
    text = (tmp_path / "manifest.json").read_text()
    assert json.loads(text) == manifest
    assert sum('"sha256"' in line for line in text.splitlines()) == len(files)


def test_a_folder_that_is_linked_has_the_same_files_and_one_that_is_gone_has_none(tmp_path):
    folder = tmp_path / "here"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "0").write_bytes(b"0")
    (folder / "1").write_bytes(b"1")
    files = list_files(folder)
    assert [file["path"] for file in files] == ["1", "data/0"]
    folder.rename(tmp_path / "other_disk")
    assert list_files(folder) == []
    folder.symlink_to(tmp_path / "other_disk")
    assert list_files(folder) == files
