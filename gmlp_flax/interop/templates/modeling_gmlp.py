"""A gMLP or aMLP that gmlp_flax has trained, in PyTorch. It needs only this file, torch and
safetensors.

    from modeling_gmlp import GMLP
    model = GMLP.from_pretrained(FOLDER)   # which has config.json and model.safetensors
    logits = model(tokens)   # int64 [batch, tokens] to [batch, tokens, vocabulary], float32
    logits = model(images)   # [batch, height, width, channels], 0 to 255, to [batch, classes]

Text models take any length up to config.model.length; a dense W that is not causal takes only that
length, and a depthwise convolution any. Masked language models return the logits of each token, causal ones those of each next
token. The parameters have gradients, but there is no dropout, and no cache for generation. The
package sentencepiece reads tokenizer.model.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

BLOCKS = "encoder/blocks/"  # the leading axis of these parameters is the layer
PAD_ID: int | None = None  # of the tokenizer, if the model ignores padding


class GMLP(nn.Module):
    """The model of a config and its parameters, name -> tensor (paper: "Pay Attention to MLPs",
    Figures 1 and 6)."""

    def __init__(self, config: dict, weights: dict[str, torch.Tensor]):
        super().__init__()
        self.config = config
        self.model = config["model"]
        self.weights = nn.ParameterDict(weights)

    @classmethod
    def from_pretrained(cls, folder: str, dtype: torch.dtype = torch.float32) -> "GMLP":
        """Reads an exported folder; `dtype` is that of the parameters and of the computation."""
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        weights = load_file(os.path.join(folder, "model.safetensors"))
        cast = {name: tensor.to(dtype) for name, tensor in weights.items()}
        return cls(config, cast).eval()

    def forward(
        self, inputs: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits, float32.

        `padding_mask`, bool [batch, tokens], is False for padding, which tiny attention, a Toeplitz
        W and a depthwise convolution then ignore. Without it, a model that can ignore padding finds it by PAD_ID.
        """
        if padding_mask is None and PAD_ID is not None:
            padding_mask = inputs != PAD_ID
        x = self.embed(inputs)
        x = self.encode(x, padding_mask)
        if "head/kernel" in self.weights:
            return self.classify(x)
        if "transform/kernel" in self.weights:
            x = self.linear(x, "transform")
            x = self.norm(self.gelu(x), "transform_norm")
        is_tied = self.model.get("tie_embeddings", True)
        table = self.weights["embedding" if is_tied else "output_embedding"]
        return (x @ table.T + self.weights["bias"]).float()

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        """The encoder's output, [batch, tokens, d_model], to logits, float32 [batch, classes]."""
        pooled = x[:, 0] if self.model["pool"] == "cls" else x.mean(1)
        if self.model["pre_logits"]:
            pooled = torch.tanh(self.linear(pooled, "pre_logits"))
        return self.linear(pooled, "head").float()

    def embed(self, inputs: torch.Tensor) -> torch.Tensor:
        """Tokens or images to the encoder's input, [batch, tokens, d_model]."""
        weights = self.weights
        x = weights["embedding"][inputs] if "embedding" in weights else self.stem(inputs)
        if "cls" in weights:
            cls = weights["cls"].expand(len(x), 1, -1)
            x = torch.cat([cls, x], dim=1)
        if "positions/table" in weights:
            x = x + weights["positions/table"][: x.shape[1]]
        if "segments/table" in weights:
            x = x + weights["segments/table"][0]
        if "embedding_norm/scale" in weights:
            x = self.norm(x, "embedding_norm")
        elif self.model.get("scale_embeddings"):
            x = x * self.model["d_model"] ** 0.5
        if "embedding_projection/kernel" in weights:
            x = self.linear(x, "embedding_projection")
        return x

    def stem(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, height, width, channels], 0 to 255, to a vector per patch, row by row."""
        if "stem/table" in self.weights:
            return self.weights["stem/table"][images.long().flatten(1)]
        kernel = self.weights["stem/kernel"]
        height, width = self.model["patch_size"]
        channels = images.shape[-1]
        data = self.config["data"]
        mean = kernel.new_tensor(data["mean"][:channels])
        std = kernel.new_tensor(data["std"][:channels])
        x = images.to(kernel.dtype) / 255
        x = (x - mean) / std
        x = x.unflatten(2, (-1, width))
        x = x.unflatten(1, (-1, height))  # [batch, rows, height, columns, width, channels]
        x = x.transpose(2, 3)
        patches = x.flatten(3).flatten(1, 2)  # [batch, tokens, height * width * channels]
        return self.linear(patches, "stem")

    def encode(self, x: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        """All layers and the final norm: [batch, tokens, d_model] to the same."""
        for layer in range(self.model["layers"]):
            y = self.norm(x, f"{BLOCKS}norm", layer)
            z = self.gelu(self.linear(y, f"{BLOCKS}proj_in", layer))
            gated = self.gate(z, y, layer, padding_mask)
            x = x + self.linear(gated, f"{BLOCKS}proj_out", layer)
        return self.norm(x, "encoder/norm")

    def gate(
        self, z: torch.Tensor, y: torch.Tensor, layer: int, padding_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """s(Z) of z [batch, tokens, d_ffn]: Z1 * f(Z2) for the Spatial Gating Unit. Tiny attention
        reads y, the block's normalised input, [batch, tokens, d_model]."""
        kind = self.model["gate"]
        u = z
        v = z
        if kind == "split":
            u, v = z.chunk(2, dim=-1)
        v = self.norm(v, f"{BLOCKS}gate/norm", layer, self.model["gate_norm_eps"])
        if padding_mask is not None and f"{BLOCKS}gate/spatial/taps" in self.weights:
            v = v * padding_mask[..., None]
        v = self.mix(v, layer)
        if self.model["d_attn"]:
            v = v + self.tiny_attention(y, layer, padding_mask)
        if kind == "linear":
            return v
        return u + v if kind == "additive" else u * v

    def mix(self, v: torch.Tensor, layer: int) -> torch.Tensor:
        """f(v) of v [batch, tokens, channels]: W v + b, or a depthwise convolution."""
        bias = self.weights[f"{BLOCKS}gate/spatial/bias"][layer]
        if self.model.get("spatial") == "depthwise":
            taps = self.weights[f"{BLOCKS}gate/spatial/taps"][layer]  # [width, channels]
            width, channels = taps.shape
            before = width - 1 if self.model["causal"] else (width - 1) // 2
            after = width - 1 - before
            padded = F.pad(v.mT, (before, after))
            kernels = taps.T[:, None]  # [channels, 1, width]
            mixed = F.conv1d(padded, kernels, bias, groups=channels)
            return mixed.mT
        tokens = v.shape[1]
        return torch.einsum("ij,bjc->bic", self.spatial(layer, tokens), v) + bias[:tokens, None]

    def spatial(self, layer: int, tokens: int) -> torch.Tensor:
        """W [tokens, tokens]; rows are outputs. Toeplitz: W[i, j] = taps[n - 1 + j - i]."""
        causal = self.model["causal"]
        is_dense = f"{BLOCKS}gate/spatial/weight" in self.weights
        if is_dense:
            matrix = self.weights[f"{BLOCKS}gate/spatial/weight"][layer]
        else:
            taps = self.weights[f"{BLOCKS}gate/spatial/taps"][layer]
            if causal:  # those of later tokens are not stored
                taps = F.pad(taps, (0, len(taps) - 1))
            matrix = taps.unfold(0, (len(taps) + 1) // 2, 1).flip(0)
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

    def tiny_attention(
        self, y: torch.Tensor, layer: int, padding_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(d_attn)) v with one head, then a dense layer to the gate's width."""
        q, k, v = self.linear(y, f"{BLOCKS}attention/qkv", layer).chunk(3, dim=-1)
        mask = None if padding_mask is None else padding_mask[:, None]
        if self.model["causal"]:
            tokens = y.shape[1]
            past = torch.ones(tokens, tokens, dtype=torch.bool, device=y.device).tril()
            mask = past if mask is None else mask & past
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
        return self.linear(mixed, f"{BLOCKS}attention/out", layer)

    def linear(self, x: torch.Tensor, name: str, layer: int | None = None) -> torch.Tensor:
        """x @ kernel + bias, of a layer of the blocks if `layer` is given."""
        kernel = self.weights[f"{name}/kernel"]
        bias = self.weights[f"{name}/bias"]
        if layer is not None:
            kernel = kernel[layer]
            bias = bias[layer]
        return x @ kernel + bias

    def norm(
        self, x: torch.Tensor, name: str, layer: int | None = None, eps: float = 0.0
    ) -> torch.Tensor:
        """Layer norm over channels; an `eps` of 0 stands for config.model.norm_eps."""
        scale = self.weights[f"{name}/scale"]
        bias = self.weights[f"{name}/bias"]
        if layer is not None:
            scale = scale[layer]
            bias = bias[layer]
        return F.layer_norm(x, x.shape[-1:], scale, bias, eps or self.model["norm_eps"])

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        """GELU, exact or approximated by tanh as config.model.activation says."""
        approximate = "tanh" if self.model["activation"] == "gelu_tanh" else "none"
        return F.gelu(x, approximate=approximate)
