"""ImageNet-1K as in the paper (section 3, Tables 1 and 2), for gMLP and the models it is compared
with.

    gmlp train --config=imagenet:gmlp_s --workdir=runs/gmlp_s

`--config.data.train=PATH` is a prepared TFDS folder or a folder of class folders (then
`--config.data.heldout=PATH` too). Without it, imagenet2012 is looked for where tensorflow_datasets
keeps it. `--config.eval.real_labels=FILE` scores the labels of ReaL as well.

ARGUMENT: MODEL, followed by ,recipe=RECIPE.

MODEL is an image model by its name in `gmlp sizes`: gmlp_ti, gmlp_s, gmlp_b (and gmlp_*_cls),
vit_*, deit_*, mixer_*, resmlp_*, ff_*.
RECIPE:
    gmlp  (default) The paper's: 300 epochs with a batch of 4096, AdamW at 1e-3 with 10,000 warmup
          steps and a cosine, AutoAugment, mixup 0.8, CutMix 1.0, label smoothing 0.1, weight decay
          0.05, and clipping at 1. The survival probability is stated in Table 1. The rest,
          from appendix A.1, is from memory. The policy of AutoAugment is that of its paper. For
          mixer_b16 this recipe is "our setup" of Table 2, with a top-1 of 77.3.
    deit  DeiT's: a batch of 1024, 5 warmup epochs, RandAugment, random erasing, repeated
          augmentation, stochastic depth up to 0.1, and a running mean of the parameters.

The type is bfloat16. Published top-1: gMLP-Ti 72.3, S 79.6, B 81.6 (Table 2). Never run here, as
there is no ImageNet and no TPU; compiled for 16 and 32 TPU v5e chips (`gmlp benchmark memory`).
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes

EXAMPLES = 1_281_167


def get_config(arg: str = "gmlp_s"):
    """See the module's docstring."""
    name, recipe = gmlp_config.arguments(
        arg or "gmlp_s", recipes.IMAGE_MODELS, recipe=("gmlp", "deit")
    )
    config = recipes.image_model(name)
    config.data.train = "tfds:imagenet2012"
    config.model.dtype = "bfloat16"
    if recipe == "gmlp":
        recipes.gmlp_imagenet(config)
        config.batch_size = 4096
        config.optimizer.warmup = 10_000
    else:
        recipes.deit_imagenet(config)
        config.batch_size = 1024
        config.optimizer.warmup = 5 * EXAMPLES // 1024
    config.steps = 300 * EXAMPLES // config.batch_size
    config.eval.every = config.checkpoint.every = 5000
    config.data.workers = 8
    return config
