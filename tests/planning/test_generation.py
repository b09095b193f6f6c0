from gmlp_flax.planning.generation import token_cost
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from tests.tasks.test_causal_lm import causal_config


def test_the_cost_of_a_token(tmp_path):
    """A gMLP of 2 layers: U, V and a row of W for the token, and the logits; the cache has the gate's n inputs."""
    task = CausalLanguageModeling.without_data(causal_config(tmp_path))
    cost = token_cost(task.generator, task.shapes())
    n, d, f, vocabulary = task.length, 8, 16, 320
    assert cost.flops == 2 * 2 * (d * f + n * f // 2 + f // 2 * d) + 2 * d * vocabulary
    assert cost.cache_bytes == 2 * n * (f // 2) * 4
    assert cost.window_flops == n * (cost.flops - 2 * d * vocabulary) + 2 * d * vocabulary
