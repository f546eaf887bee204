"""The process that answers for a package: when it ends, and what it is sent."""

from importlib.metadata import version

import pytest

from tasks.compute import served
from tasks.data.image_table import AcceptedImage


@pytest.mark.slow
def test_a_process_that_waits_for_a_package_ends_when_none_comes():
    program = served._Program()
    program.pipe.close()
    assert program.process.wait(300) == 0
    program.close()


def test_libraries_of_another_version_are_named(tmp_path):
    lines = [f"numpy=={version('numpy')}", "pandas==1.0", "nobody-has-this==3"]
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    assert served.other_versions(tmp_path) == [
        f"pandas 1.0 (here {version('pandas')})",
        "nobody-has-this 3 (here missing)",
    ]


def test_what_is_sent_at_once_is_bounded_in_rows_and_bytes(monkeypatch):
    monkeypatch.setattr(served, "MAX_ROWS", 3)
    monkeypatch.setattr(served, "MAX_BYTES", 10)
    sizes = [1, 1, 1, 1, 6, 6, 20, 1]
    images = [AcceptedImage("p", "l", "s", b"x" * size) for size in sizes]
    sent = [[len(image.data) for image in some] for some in served.portions(images)]
    assert sent == [[1, 1, 1], [1, 6], [6], [20], [1]]
