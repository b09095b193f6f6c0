"""Hydra's matrices over the tokens (arXiv 2407.09941): a file for each structure, and the table that
names them."""

from gmlp_flax.models.matrix_mixers.base import MatrixMixer
from gmlp_flax.models.matrix_mixers.dense import Dense
from gmlp_flax.models.matrix_mixers.quasiseparable import Quasiseparable
from gmlp_flax.models.matrix_mixers.queries_and_keys import Attention, LowRank
from gmlp_flax.models.matrix_mixers.toeplitz import Toeplitz

MATRICES: dict[str, type[MatrixMixer]] = {
    "quasiseparable": Quasiseparable,
    "dense": Dense,
    "toeplitz": Toeplitz,
    "low_rank": LowRank,
    "attention": Attention,
}
