import pytest

from tests.models.attention.cases import transformer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "model.heads, 3, must divide it"),
        ({"d_qkv": 9}, "model.d_qkv is 9: model.heads, 2, must divide it"),
        ({"heads": 16, "positions": "rotary"}, "a head has 1 channels: expected an even number"),
        ({"rotary_theta": 0.0}, "rotary_theta is 0.0: expected above 0"),
        ({"positions": "relative_only", "qk_norm": True}, "set model.qk_norm to False"),
        ({"relative_buckets": 5}, "model.relative_buckets is 5"),
        ({"window": 3}, "model.window is 3: expected 0, or an even number"),
        ({"kv_heads": 3}, "model.kv_heads is 3: expected a divisor of model.heads, 2"),
        ({"kv_heads": 1, "positions": "relative_only"}, "set model.kv_heads to 0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        transformer(**options)


@pytest.mark.parametrize(
    ("options", "is_limited"),
    [
        ({"positions": "none"}, False),
        ({"positions": "rotary"}, False),
        ({"positions": "absolute"}, True),
        ({"positions": "relative"}, True),
        ({"positions": "relative", "relative_buckets": 4}, False),
    ],
)
def test_positions_with_parameters_limit_the_length(options, is_limited):
    spec = transformer(length=24, **options)
    assert spec.supports_length(24)
    assert spec.supports_length(25) != is_limited


def test_heads_may_be_wider_and_share_keys():
    spec = transformer(d_qkv=24, heads=4, kv_heads=2)
    assert spec.d_head == 6
    assert spec.key_heads == 2
    assert transformer(heads=4).key_heads == 4
