import logging

import pytest

from tasks.validate.step import say_near_duplicates


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (0, []),
        (
            1234,
            [
                "1,234 images look like one of a split held out from theirs: near_duplicates.csv "
                "beside the Data Docs lists them."
            ],
        ),
    ],
)
def test_images_that_look_like_one_held_out_are_told_if_there_are_any(caplog, count, lines):
    with caplog.at_level(logging.INFO, "retrain"):
        say_near_duplicates({"data": {"near_duplicates": count}})
    assert caplog.messages == lines
