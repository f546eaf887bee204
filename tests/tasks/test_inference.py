import numpy as np
import pytest

from tasks.inference import probabilities
from tests.tasks.trained import LABELS, pixels, plain_probabilities, write_model, write_prepared

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.mark.parametrize(("batch_size", "chunk"), [(8, 1000), (3, 16)])
def test_ray_says_exactly_what_a_plain_loop_says(tmp_path, batch_size, chunk):
    model = write_model(tmp_path / "train").folder / "model"
    images = write_prepared(tmp_path / "images", rows=50).folder
    chunks = list(probabilities(model, images, "test", batch_size, chunk))
    assert [len(each) for each in chunks[:-1]] == [chunk] * (len(chunks) - 1)
    said = np.concatenate(chunks)
    assert said.dtype == np.float32
    assert said.shape == (50, len(LABELS))
    assert np.array_equal(said, plain_probabilities(model, pixels(50), batch_size))
