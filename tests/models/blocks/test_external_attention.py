import pytest

from tests.models.reference import small_spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0}, "model.memory is 0"),
        ({"heads": 4}, "model.heads, 4"),
        ({"memory_softmax": "both"}, "'both'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="external_attention", **options)
