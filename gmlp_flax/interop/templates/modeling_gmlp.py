"""A gMLP or aMLP that gmlp_flax has trained, in PyTorch: this file, torch and safetensors are all
that is needed.

    from modeling_gmlp import GMLP
    model = GMLP.from_pretrained(FOLDER)   # with config.json and model.safetensors beside each
    other logits = model(tokens)                 # int64 [batch, tokens] to float32 [batch, tokens,
    vocabulary] logits = model(images)                 # [batch, height, width, channels], 0 to 255,
    to float32 [batch, classes]

Text models take any length up to config.model.length (a dense W that is not causal: that length).
Masked language models give logits at all positions; causal ones give those of the token after each.
The parameters have gradients, but there is no dropout, and no cache for generation. tokenizer.model
is read by the package sentencepiece.
"""

import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

BLOCKS = "encoder/blocks/"  # the leading axis of these parameters is the layer


class GMLP(nn.Module):
    """The model of a config and its parameters, name -> tensor (paper: "Pay Attention to MLPs",
    Figures 1 and 6)."""

    def __init__(self, config: dict, weights: dict[str, torch.Tensor]):
        super().__init__()
        self.config, self.model = config, config["model"]
        self.weights = nn.ParameterDict(weights)

    @classmethod
    def from_pretrained(cls, folder: str, dtype: torch.dtype = torch.float32) -> "GMLP":
        """Reads an exported folder; `dtype` is of parameters and computation."""
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        weights = load_file(os.path.join(folder, "model.safetensors"))
        return cls(config, {name: tensor.to(dtype) for name, tensor in weights.items()}).eval()

    def forward(
        self, inputs: torch.Tensor, padding_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits. `padding_mask`, bool [batch, tokens], is False for padding, which tiny attention
        and a Toeplitz W then ignore: for models with such a W, as their predictions do, or trained
            with config.model.mask_padding."""
        x = self.encode(self.embed(inputs), padding_mask)
        if "head/kernel" in self.weights:
            pooled = x[:, 0] if self.model["pool"] == "cls" else x.mean(1)
            pooled = (
                torch.tanh(self.linear(pooled, "pre_logits"))
                if self.model["pre_logits"]
                else pooled
            )
            return self.linear(pooled, "head").float()
        if "transform/kernel" in self.weights:
            x = self.norm(self.gelu(self.linear(x, "transform")), "transform_norm")
        table = self.weights[
            "embedding" if self.model.get("tie_embeddings", True) else "output_embedding"
        ]
        return (x @ table.T + self.weights["bias"]).float()

    def embed(self, inputs: torch.Tensor) -> torch.Tensor:
        """Tokens or images to the encoder's input, [batch, tokens, d_model]."""
        weights = self.weights
        x = weights["embedding"][inputs] if "embedding" in weights else self.stem(inputs)
        if "cls" in weights:
            x = torch.cat([weights["cls"].expand(len(x), 1, -1), x], dim=1)
        if "positions/table" in weights:
            x = x + weights["positions/table"][: x.shape[1]]
        if "segments/table" in weights:
            x = x + weights["segments/table"][0]
        if "embedding_norm/scale" in weights:
            x = self.norm(x, "embedding_norm")
        elif self.model.get("scale_embeddings"):
            x = x * self.model["d_model"] ** 0.5
        return (
            self.linear(x, "embedding_projection")
            if "embedding_projection/kernel" in weights
            else x
        )

    def stem(self, images: torch.Tensor) -> torch.Tensor:
        """[batch, height, width, channels], 0 to 255, to a vector per patch, row by row."""
        if "stem/table" in self.weights:
            return self.weights["stem/table"][images.long().flatten(1)]
        kernel, (rows, columns) = self.weights["stem/kernel"], self.model["patch_size"]
        channels = images.shape[-1]
        mean, std = (
            kernel.new_tensor(self.config["data"][name][:channels]) for name in ("mean", "std")
        )
        x = (images.to(kernel.dtype) / 255 - mean) / std
        x = x.unflatten(2, (-1, columns)).unflatten(1, (-1, rows)).transpose(2, 3)
        return self.linear(x.flatten(3).flatten(1, 2), "stem")

    def encode(self, x: torch.Tensor, padding_mask: torch.Tensor | None = None) -> torch.Tensor:
        """All layers and the final norm: [batch, tokens, d_model] to the same."""
        for layer in range(self.model["layers"]):
            y = self.norm(x, f"{BLOCKS}norm", layer)
            z = self.gelu(self.linear(y, f"{BLOCKS}proj_in", layer))
            x = x + self.linear(self.gate(z, y, layer, padding_mask), f"{BLOCKS}proj_out", layer)
        return self.norm(x, "encoder/norm")

    def gate(
        self, z: torch.Tensor, y: torch.Tensor, layer: int, padding_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """s(Z): Z1 * f(Z2) for the Spatial Gating Unit; tiny attention reads y, the block's
        normalised input."""
        gate = self.model["gate"]
        u, v = z.chunk(2, dim=-1) if gate == "split" else (z, z)
        v = self.norm(v, f"{BLOCKS}gate/norm", layer, self.model["gate_norm_eps"])
        if padding_mask is not None and f"{BLOCKS}gate/spatial/taps" in self.weights:
            v = v * padding_mask[..., None]
        bias = self.weights[f"{BLOCKS}gate/spatial/bias"][layer, : v.shape[1], None]
        v = torch.einsum("ij,bjc->bic", self.spatial(layer, v.shape[1]), v) + bias
        if self.model["d_attn"]:
            v = v + self.tiny_attention(y, layer, padding_mask)
        return v if gate == "linear" else u + v if gate == "additive" else u * v

    def spatial(self, layer: int, tokens: int) -> torch.Tensor:
        """W [tokens, tokens]; rows are outputs. Toeplitz: W[i, j] = taps[n - 1 + j - i]."""
        causal, name = self.model["causal"], f"{BLOCKS}gate/spatial/"
        if f"{name}weight" in self.weights:
            matrix = self.weights[f"{name}weight"][layer]
            if not causal and tokens != len(matrix):
                raise ValueError(
                    f"the model was made for {len(matrix)} tokens and was given {tokens}"
                )
        else:
            taps = self.weights[f"{name}taps"][layer]
            taps = F.pad(taps, (0, len(taps) - 1)) if causal else taps
            matrix = taps.unfold(0, (len(taps) + 1) // 2, 1).flip(0)
        if tokens > len(matrix):
            raise ValueError(
                f"the model was made for at most {len(matrix)} tokens and was given {tokens}"
            )
        return (matrix.tril() if causal else matrix)[:tokens, :tokens]

    def tiny_attention(
        self, y: torch.Tensor, layer: int, padding_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(d_attn)) v with one head."""
        q, k, v = self.linear(y, f"{BLOCKS}attention/qkv", layer).chunk(3, dim=-1)
        mask = None if padding_mask is None else padding_mask[:, None]
        if self.model["causal"]:
            past = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool, device=y.device).tril()
            mask = past if mask is None else mask & past
        return self.linear(
            F.scaled_dot_product_attention(q, k, v, mask), f"{BLOCKS}attention/out", layer
        )

    def linear(self, x: torch.Tensor, name: str, layer: int | None = None) -> torch.Tensor:
        kernel, bias = self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"]
        return x @ kernel + bias if layer is None else x @ kernel[layer] + bias[layer]

    def norm(
        self, x: torch.Tensor, name: str, layer: int | None = None, eps: float = 0.0
    ) -> torch.Tensor:
        scale, bias = self.weights[f"{name}/scale"], self.weights[f"{name}/bias"]
        scale, bias = (scale, bias) if layer is None else (scale[layer], bias[layer])
        return F.layer_norm(x, x.shape[-1:], scale, bias, eps or self.model["norm_eps"])

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh" if self.model["activation"] == "gelu_tanh" else "none")
