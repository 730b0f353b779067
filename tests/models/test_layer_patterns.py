"""Which layers are sparse."""

import pytest

from remixer_tf.models import alternate, interleave

DENSE, SPARSE = {"dense": None}, {"sparse": None}


def sparse_places(layers):
    return [number for number, layer in enumerate(layers) if layer is SPARSE]


@pytest.mark.parametrize("num_layers", range(1, 31))
def test_sparse_layers_stand_after_the_papers_numbers_of_layers(num_layers):
    for count in range(num_layers + 1):
        layers = interleave(DENSE, SPARSE, num_layers, count)
        expected = [
            int(i * num_layers / (count + 1) + 1e-9) for i in range(1, count + 1)
        ]
        assert len(layers) == num_layers and sparse_places(layers) == expected


def test_every_second_layer():
    assert sparse_places(alternate([DENSE, SPARSE], 5)) == [1, 3]


def test_too_few_layers():
    with pytest.raises(ValueError, match="num_sparse=3 for num_layers=2"):
        interleave(DENSE, SPARSE, num_layers=2, num_sparse=3)
    with pytest.raises(ValueError, match="a pattern of 2 for num_layers=1"):
        alternate([DENSE, SPARSE], 1)
