from tests.models.matrix_mixers.cases import shapes


def test_causal_matrices_have_one_direction():
    computed = shapes("toeplitz", True, causal=True, dtype="float32")
    learned = shapes("toeplitz", False, causal=True, dtype="float32")
    assert computed["features"]["proj"]["kernel"] == (6, 3)
    assert learned == {"taps": (3, 5)}
