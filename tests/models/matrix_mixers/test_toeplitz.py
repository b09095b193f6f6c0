from tests.models.matrix_mixers.cases import shapes


def test_a_causal_matrix_has_one_direction():
    computed = shapes("toeplitz", True, causal=True, dtype="float32")
    assert computed["features"]["proj"]["kernel"] == (6, 3)
    assert shapes("toeplitz", False, causal=True, dtype="float32") == {"taps": (3, 5)}
