import threading

import pytest

from retrain.atomic import write_text


def test_two_writers_never_share_a_partial_file(tmp_path):
    path = tmp_path / "record.json"
    texts = [letter * 200_000 for letter in "abcd"]
    faults = []

    def write(text):
        try:
            for _ in range(30):
                write_text(path, text)
                if path.read_text() not in texts:
                    faults.append("half of one")
        except OSError as error:
            faults.append(error)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert faults == []
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "record.json"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
