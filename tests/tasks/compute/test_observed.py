"""What a package tells of images, as arrays."""

import pyarrow as pa
import pytest

from tasks.compute.observed import embeddings_of, probabilities_of


def answers(features):
    columns = {
        "probabilities": pa.FixedSizeListArray.from_arrays(pa.array([0.5, 0.5, 0.25, 0.75]), 2),
        "features": pa.array(features, pa.list_(pa.float32())),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_embeddings_and_probabilities_have_a_row_for_each_image():
    batch = answers([[1, 2, 3], [4, 5, 6]])
    assert embeddings_of(batch, "vit version 1").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert probabilities_of(batch).tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert embeddings_of(batch.slice(1), "vit version 1").tolist() == [[4, 5, 6]]
    assert probabilities_of(batch.slice(1)).tolist() == [[0.25, 0.75]]


def test_a_network_that_tells_no_embeddings_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="custom version 2 does not tell the embeddings of images"):
        embeddings_of(answers([None, None]), "custom version 2")
