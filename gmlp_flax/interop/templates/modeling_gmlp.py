"""A gMLP or aMLP that gmlp_flax has trained, in PyTorch. It needs only this file, torch and
safetensors.

    from modeling_gmlp import GMLP
    model = GMLP.from_pretrained(FOLDER)   # which has config.json and model.safetensors
    logits = model(tokens)   # int64 [batch, tokens] to [batch, tokens, vocabulary], float32
    logits = model(images)   # [batch, height, width, channels], 0 to 255, to [batch, classes]

Text models take any length up to config.model.length; a dense W that is not causal takes only that
length, and a depthwise convolution any. Masked language models return the logits of each token,
causal ones those of each next token. The parameters have gradients, but there is no dropout, and no
cache for generation. The package sentencepiece reads tokenizer.model.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

BLOCKS = "encoder/blocks/"  # the leading axis of these parameters is the layer
TAPS = f"{BLOCKS}gate/spatial/taps"  # of a Toeplitz W, or of a depthwise convolution
DENSE = f"{BLOCKS}gate/spatial/weight"
PAD_ID: int | None = None  # of the tokenizer, if the model ignores padding


class GMLP(nn.Module):
    """The model of a config and its parameters, name -> tensor (paper: "Pay Attention to MLPs",
    Figures 1 and 6)."""

    def __init__(self, config: dict, weights: dict[str, Tensor]):
        super().__init__()
        self.config = config
        self.model = config["model"]
        self.weights = nn.ParameterDict(weights)

    @classmethod
    def from_pretrained(cls, folder: str, dtype: torch.dtype = torch.float32) -> "GMLP":
        """Reads an exported folder; `dtype` is that of the parameters and of the computation."""
        config_file = os.path.join(folder, "config.json")
        weight_file = os.path.join(folder, "model.safetensors")
        with open(config_file, encoding="utf-8") as file:
            config = json.load(file)
        weights = {}
        for name, tensor in load_file(weight_file).items():
            weights[name] = tensor.to(dtype)
        model = cls(config, weights)
        return model.eval()

    def forward(self, inputs: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Logits, float32.

        `padding_mask`, bool [batch, tokens], is False for padding, which tiny attention, a Toeplitz
        W and a depthwise convolution then ignore. Without it, a model that can ignore padding finds
        it by PAD_ID.
        """
        if padding_mask is None and PAD_ID is not None:
            padding_mask = inputs != PAD_ID
        x = self.embed(inputs)
        x = self.encode(x, padding_mask)
        if "head/kernel" in self.weights:
            return self.classify(x)
        if "transform/kernel" in self.weights:
            x = self.linear(x, "transform")
            x = self.gelu(x)
            x = self.norm(x, "transform_norm")
        is_tied = self.model.get("tie_embeddings", True)
        table = self.weights["embedding" if is_tied else "output_embedding"]
        logits = x @ table.T + self.weights["bias"]
        return logits.float()

    def classify(self, x: Tensor) -> Tensor:
        """The encoder's output, [batch, tokens, d_model], to logits, float32 [batch, classes]."""
        pooled = x[:, 0] if self.model["pool"] == "cls" else x.mean(1)
        if self.model["pre_logits"]:
            hidden = self.linear(pooled, "pre_logits")
            pooled = torch.tanh(hidden)
        logits = self.linear(pooled, "head")
        return logits.float()

    def embed(self, inputs: Tensor) -> Tensor:
        """Tokens or images to the encoder's input, [batch, tokens, d_model]."""
        weights = self.weights
        x = weights["embedding"][inputs] if "embedding" in weights else self.stem(inputs)
        if "cls" in weights:
            cls = weights["cls"].expand(len(x), 1, -1)
            x = torch.cat([cls, x], dim=1)
        if "positions/table" in weights:
            tokens = x.shape[1]
            x = x + weights["positions/table"][:tokens]
        if "segments/table" in weights:
            x = x + weights["segments/table"][0]
        if "embedding_norm/scale" in weights:
            x = self.norm(x, "embedding_norm")
        elif self.model.get("scale_embeddings"):
            x = x * self.model["d_model"] ** 0.5
        if "embedding_projection/kernel" in weights:
            x = self.linear(x, "embedding_projection")
        return x

    def stem(self, images: Tensor) -> Tensor:
        """[batch, height, width, channels], 0 to 255, to a vector per patch, row by row."""
        if "stem/table" in self.weights:
            levels = images.long().flatten(1)
            return self.weights["stem/table"][levels]
        pixels = self.normalize(images)
        patches = self.cut(pixels)
        return self.linear(patches, "stem")

    def normalize(self, images: Tensor) -> Tensor:
        """Pixels from 0 to 255, less the mean of config.data and divided by its deviation."""
        kernel = self.weights["stem/kernel"]
        data = self.config["data"]
        channels = images.shape[-1]
        mean = kernel.new_tensor(data["mean"][:channels])
        std = kernel.new_tensor(data["std"][:channels])
        pixels = images.to(kernel.dtype) / 255
        return (pixels - mean) / std

    def cut(self, pixels: Tensor) -> Tensor:
        """[batch, rows * height, columns * width, channels] to the patches of this height and
        width, [batch, rows * columns, height * width * channels]."""
        height, width = self.model["patch_size"]
        x = pixels.unflatten(2, (-1, width))
        x = x.unflatten(1, (-1, height))  # [batch, rows, height, columns, width, channels]
        x = x.transpose(2, 3)
        x = x.flatten(3)
        return x.flatten(1, 2)

    def encode(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """All layers and the final norm: [batch, tokens, d_model] to the same."""
        for layer in range(self.model["layers"]):
            y = self.norm(x, f"{BLOCKS}norm", layer)
            z = self.linear(y, f"{BLOCKS}proj_in", layer)
            z = self.gelu(z)
            gated = self.gate(z, y, layer, padding_mask)
            update = self.linear(gated, f"{BLOCKS}proj_out", layer)
            x = x + update
        return self.norm(x, "encoder/norm")

    def gate(self, z: Tensor, y: Tensor, layer: int, padding_mask: Tensor | None) -> Tensor:
        """s(Z) of z [batch, tokens, d_ffn]: Z1 * f(Z2) for the Spatial Gating Unit. Tiny attention
        reads y, the block's normalized input, [batch, tokens, d_model]."""
        kind = self.model["gate"]
        u = z
        v = z
        if kind == "split":
            u, v = z.chunk(2, dim=-1)
        v = self.norm(v, f"{BLOCKS}gate/norm", layer, self.model["gate_norm_eps"])
        if padding_mask is not None and TAPS in self.weights:
            v = v * padding_mask[..., None]
        v = self.mix(v, layer)
        if self.model["d_attn"]:
            v = v + self.tiny_attention(y, layer, padding_mask)
        if kind == "linear":
            return v
        return u + v if kind == "additive" else u * v

    def mix(self, v: Tensor, layer: int) -> Tensor:
        """f(v) of v [batch, tokens, channels]: W v + b, or a depthwise convolution."""
        bias = self.parameter(f"{BLOCKS}gate/spatial/bias", layer)
        if self.model.get("spatial") == "depthwise":
            taps = self.parameter(TAPS, layer)
            return self.convolve(v, taps, bias)
        tokens = v.shape[1]
        matrix = self.spatial(layer, tokens)
        mixed = torch.einsum("ij,bjc->bic", matrix, v)
        return mixed + bias[:tokens, None]

    def convolve(self, v: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
        """A depthwise convolution of v [batch, tokens, channels] with taps [width, channels]."""
        width, channels = taps.shape
        others = width - 1
        before = others if self.model["causal"] else others // 2
        padded = F.pad(v.mT, (before, others - before))
        kernels = taps.T[:, None]  # [channels, 1, width]
        mixed = F.conv1d(padded, kernels, bias, groups=channels)
        return mixed.mT

    def spatial(self, layer: int, tokens: int) -> Tensor:
        """W [tokens, tokens]; rows are outputs."""
        causal = self.model["causal"]
        is_dense = DENSE in self.weights
        if is_dense:
            matrix = self.parameter(DENSE, layer)
        else:
            taps = self.parameter(TAPS, layer)
            matrix = self.toeplitz(taps)
        length = len(matrix)
        if is_dense and not causal and tokens != length:
            raise ValueError(f"the model was made for {length} tokens and was given {tokens}")
        if tokens > length:
            raise ValueError(
                f"the model was made for at most {length} tokens and was given {tokens}"
            )
        if causal:
            matrix = matrix.tril()
        return matrix[:tokens, :tokens]

    def toeplitz(self, taps: Tensor) -> Tensor:
        """W[i, j] = taps[n - 1 + j - i]: [n, n]."""
        count = len(taps)
        n = (count + 1) // 2
        if self.model["causal"]:  # the taps of later tokens are not stored
            n = count
            taps = F.pad(taps, (0, n - 1))
        windows = taps.unfold(0, n, 1)  # the last row of W first
        return windows.flip(0)

    def tiny_attention(self, y: Tensor, layer: int, padding_mask: Tensor | None) -> Tensor:
        """softmax(q k^T / sqrt(d_attn)) v with one head, then a dense layer to the gate's width."""
        qkv = self.linear(y, f"{BLOCKS}attention/qkv", layer)
        q, k, v = qkv.chunk(3, dim=-1)
        mask = None
        if padding_mask is not None:
            mask = padding_mask[:, None]
        if self.model["causal"]:
            tokens = y.shape[1]
            everything = torch.ones(tokens, tokens, dtype=torch.bool, device=y.device)
            past = everything.tril()
            mask = past if mask is None else mask & past
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
        return self.linear(mixed, f"{BLOCKS}attention/out", layer)

    def linear(self, x: Tensor, name: str, layer: int | None = None) -> Tensor:
        """x @ kernel + bias, of a layer of the blocks if `layer` is given."""
        kernel = self.parameter(f"{name}/kernel", layer)
        bias = self.parameter(f"{name}/bias", layer)
        return x @ kernel + bias

    def norm(self, x: Tensor, name: str, layer: int | None = None, eps: float = 0.0) -> Tensor:
        """Layer norm over channels; an `eps` of 0 stands for config.model.norm_eps."""
        scale = self.parameter(f"{name}/scale", layer)
        bias = self.parameter(f"{name}/bias", layer)
        eps = eps or self.model["norm_eps"]
        return F.layer_norm(x, scale.shape, scale, bias, eps)

    def parameter(self, name: str, layer: int | None) -> Tensor:
        """A parameter by its name; that of a layer of the blocks if `layer` is given."""
        stored = self.weights[name]
        return stored if layer is None else stored[layer]

    def gelu(self, x: Tensor) -> Tensor:
        """GELU, exact or approximated by tanh as config.model.activation says."""
        approximate = "tanh" if self.model["activation"] == "gelu_tanh" else "none"
        return F.gelu(x, approximate=approximate)
