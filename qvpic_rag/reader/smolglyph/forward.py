"""The model's function in batches, for training: vision tower, frozen language model, low-rank updates of it.

:class:`TrainingForward` computes what transformers' ``Qwen2_5_VLForConditionalGeneration`` computes, on the same
parameters, for many equal pictures and for contexts followed by many questions; a test compares the two. The language
model's weights are kept once more in the computation's dtype and get no gradients.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from qvpic_rag.models.reader_images import MERGE, PATCH, WHITE
from qvpic_rag.models.smolglyph.lora import Lora
from qvpic_rag.reader import kernels, operations

__all__ = ["TrainingForward"]

_VISION_EPS = 1e-6  # transformers has it fixed in the code


class _Layer(NamedTuple):
    """A decoder layer's frozen weights: norms float32, the rest in the computation's dtype."""

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor
    o: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class TrainingForward:
    """The model's function, in batches.

    Parameters
    ----------
    model : Qwen2_5_VLForConditionalGeneration
        Holds the parameters, float32.
    lora : Lora
        Updates of its language model; on the model's device.
    dtype : torch.dtype
        Of the computation: bfloat16 with the compiled kernels on a CPU, else through plain operations.
    """

    def __init__(self, model: Any, lora: Lora, dtype: torch.dtype = torch.bfloat16) -> None:
        self.model, self.lora, self.dtype = model, lora, dtype
        self.vision, self.config = model.model.visual, model.config.text_config
        self.device: torch.device = next(model.parameters()).device
        fused = self.device.type == "cpu" and dtype == torch.bfloat16 and kernels.available()
        self.ops: ModuleType = kernels if fused else operations
        language = model.model.language_model.requires_grad_(False)
        self._layers = [self._frozen(layer) for layer in language.layers]
        self._norm = language.norm.weight.detach().float()
        self.embedding = language.embed_tokens.weight.detach().to(dtype)
        self._frequencies = language.rotary_emb.inv_freq.float()
        sections = torch.tensor(self.config.rope_parameters["mrope_section"])
        self._axis = torch.repeat_interleave(torch.arange(len(sections)) % 3, sections).to(self.device)
        self._grids: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def see(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """What the vision tower makes of pictures of one size.

        Parameters
        ----------
        pictures : Tensor
            uint8 ``(batch, height, width)``, grey, pixels; both sides multiples of ``PATCH * MERGE``.

        Returns
        -------
        embeddings : Tensor
            ``(batch, tokens, text_hidden)``, tokens row by row.
        features : Tensor
            ``(batch, tokens, MERGE**2 * vision_hidden)``: what the merger makes them from.
        """
        vision, ops, cast = self.vision, self.ops, self._cast
        heads = vision.config.num_heads
        batch, rows, columns = pictures.shape[0], pictures.shape[1] // PATCH, pictures.shape[2] // PATCH
        cos, sin = self._grid(rows, columns)
        x = (pictures.float() / 255 - WHITE["mean"]) / WHITE["std"]
        # Patches of one merged token stand together, as the image processor delivers them.
        x = x.view(batch, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
        x = x.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, rows * columns, PATCH * PATCH)
        # All channels and both frames of a still picture are equal, so their weights add up.
        x = F.linear(x.to(self.dtype), cast(vision.patch_embed.proj.weight.sum((1, 2)).flatten(1)))
        for block in vision.blocks:
            attention, mlp = block.attn, block.mlp
            h = ops.rms_norm(x, block.norm1.weight, _VISION_EPS)
            h = ops.attention(self._linear(h, attention.qkv), cos, sin, None, heads, heads, False)
            x = x + self._linear(h, attention.proj)
            h = ops.rms_norm(x, block.norm2.weight, _VISION_EPS)
            weight = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            bias = torch.cat([mlp.gate_proj.bias, mlp.up_proj.bias])
            x = x + self._linear(ops.swiglu(F.linear(h, cast(weight), cast(bias))), mlp.down_proj)
        merger = vision.merger
        features = ops.rms_norm(x, merger.ln_q.weight, _VISION_EPS).view(batch, -1, MERGE * MERGE * x.shape[-1])
        return self._linear(F.gelu(self._linear(features, merger.mlp[0])), merger.mlp[2]), features

    def read(self, embeddings: Tensor, positions: Tensor, groups: Tensor, *, updated: bool = True) -> Tensor:
        """Last hidden states of a packed text.

        Parameters
        ----------
        embeddings : Tensor
            ``(batch, tokens, text_hidden)``.
        positions : Tensor
            int64 ``(batch, 3, tokens)``.
        groups : Tensor
            int32 ``(batch, tokens, 2)``, see :func:`qvpic_rag.reader.operations.visible`.
        updated : bool
            Whether the low-rank updates count; without them this is SmolLM2 itself.
        """
        ops, config = self.ops, self.config
        heads, kv_heads, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
        cos, sin = self._angles(positions)
        updates = self.lora.cast(self.dtype) if updated else [None] * len(self._layers)
        x = embeddings
        for layer, update in zip(self._layers, updates, strict=True):
            h = ops.rms_norm(x, layer.norm1, eps)
            qkv = F.linear(h, layer.qkv, layer.qkv_bias)
            if update is not None:
                qkv = qkv + F.linear(F.linear(h, update[0]), update[1])
            h = ops.attention(qkv, cos, sin, groups, heads, kv_heads, False)
            x = x + F.linear(h, layer.o)
            if update is not None:
                x = x + F.linear(F.linear(h, update[2]), update[3])
            h = ops.rms_norm(x, layer.norm2, eps)
            x = x + F.linear(ops.swiglu(F.linear(h, layer.gate_up)), layer.down)
        hidden: Tensor = ops.rms_norm(x, self._norm, eps)
        return hidden

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings of token ids, in the computation's dtype."""
        return F.embedding(token_ids, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 ``(..., vocabulary)``."""
        return F.linear(hidden, self.embedding).float()

    def _frozen(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        parts = (
            torch.cat([each.weight for each in projections]),
            torch.cat([each.bias for each in projections]),
            attention.o_proj.weight,
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            mlp.down_proj.weight,
        )
        qkv, bias, o, gate_up, down = (part.detach().to(self.dtype) for part in parts)
        norms = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
        norm1, norm2 = (norm.detach().float() for norm in norms)
        return _Layer(norm1, qkv, bias, o, norm2, gate_up, down)

    def _cast(self, weight: Tensor) -> Tensor:
        return weight.to(self.dtype)

    def _linear(self, x: Tensor, linear: Any) -> Tensor:
        return F.linear(x, self._cast(linear.weight), self._cast(linear.bias))

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin ``(batch, tokens, head_dim)``: each section of frequencies turns with its own axis."""
        turns = positions.float()[:, self._axis].transpose(1, 2) * self._frequencies
        turns = torch.cat([turns, turns], -1)
        return turns.cos(), turns.sin()

    def _grid(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        """Vision rotary cos and sin ``(1, patches, head_dim)``."""
        if (rows, columns) not in self._grids:
            down, right = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")

            def by_token(index: Tensor) -> Tensor:
                return index.view(rows // MERGE, MERGE, columns // MERGE, MERGE).transpose(1, 2).flatten()

            frequencies = self.vision.rotary_pos_emb.inv_freq.float()
            h, w = (by_token(each).to(self.device)[:, None] * frequencies for each in (down, right))
            turns = torch.cat([h, w, h, w], -1)[None]
            self._grids[rows, columns] = turns.cos(), turns.sin()
        return self._grids[rows, columns]
