import numpy as np
import pytest

from tasks.inference import probabilities
from tests.tasks.trained import LABELS, pixels, plain_probabilities, write_model, write_prepared

pytestmark = pytest.mark.usefixtures("ray_session")


def test_ray_says_exactly_what_a_plain_loop_says(tmp_path):
    model = write_model(tmp_path / "train").folder / "model"
    images = write_prepared(tmp_path / "images", rows=50).folder
    chunks = list(probabilities(model, images, "test", batch_size=3, chunk=16))
    assert [len(chunk) for chunk in chunks] == [16, 16, 16, 2]
    said = np.concatenate(chunks)
    assert said.dtype == np.float32
    assert said.shape == (50, len(LABELS))
    assert np.array_equal(said, plain_probabilities(model, pixels(50), batch_size=3))
