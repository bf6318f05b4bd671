"""A tiny GLM-4.1V: its configuration, first weights, and a forward pass made for training in batches.

The weights live in transformers' own ``Glm4vForConditionalGeneration``, so a trained reader is an ordinary checkpoint.
Its forward runs pictures one by one and texts without packing; :class:`TrainingForward` computes the same function on
the same parameters for many equal pictures, and for contexts followed by many questions. A test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import Glm4vConfig, Glm4vForConditionalGeneration

from qvpic_rag.models.reader_images import MERGE, PATCH, WHITE
from qvpic_rag.reader import kernels, operations
from qvpic_rag.reader.tokens import END, SPECIAL_TOKENS

__all__ = ["Dimensions", "TrainingForward", "VisionWeights", "build_model"]


@dataclass(frozen=True)
class Dimensions:
    """Sizes of a reader; the defaults are the recipe ``demo.toml``'s.

    Attributes
    ----------
    text_hidden, text_layers, text_mlp, text_heads, text_kv_heads : int
        The language model.
    vision_hidden, vision_layers, vision_heads : int
        The vision tower.
    rope_theta : float
        Base of the text's rotary wavelengths; small, because contexts are a few hundred positions long.
    """

    text_hidden: int = 256
    text_layers: int = 6
    text_mlp: int = 512
    text_heads: int = 4
    text_kv_heads: int = 2
    vision_hidden: int = 192
    vision_layers: int = 4
    vision_heads: int = 3
    rope_theta: float = 100.0


def build_model(dimensions: Dimensions, vocabulary: int, *, seed: int) -> Any:
    """A ``Glm4vForConditionalGeneration`` with fresh weights, float32.

    Parameters
    ----------
    vocabulary : int
        Number of token ids.
    seed : int
        Decides the weights.
    """
    d = dimensions
    half = d.text_hidden // d.text_heads // 4  # pairs that rotate: half of the head's
    spatial = half * 3 // 8
    special = {name: index for index, name in enumerate(SPECIAL_TOKENS)}
    config = Glm4vConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": d.text_hidden,
            "intermediate_size": d.text_mlp,
            "num_hidden_layers": d.text_layers,
            "num_attention_heads": d.text_heads,
            "num_key_value_heads": d.text_kv_heads,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "pad_token_id": special[END],
            "eos_token_id": special[END],
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": d.rope_theta,
                "partial_rotary_factor": 0.5,
                "mrope_section": [half - 2 * spatial, spatial, spatial],
            },
        },
        vision_config={
            "depth": d.vision_layers,
            "hidden_size": d.vision_hidden,
            "num_heads": d.vision_heads,
            "in_channels": 3,
            "image_size": 256,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": d.text_hidden,
            "intermediate_size": d.text_mlp,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        },
        image_token_id=special["<|image|>"],
        video_token_id=special["<|video|>"],
        image_start_token_id=special["<|begin_of_image|>"],
        image_end_token_id=special["<|end_of_image|>"],
        video_start_token_id=special["<|begin_of_video|>"],
        video_end_token_id=special["<|end_of_video|>"],
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Glm4vForConditionalGeneration(config)
        # transformers starts everything at 0.02, made for wide models; a narrow one learns faster from these.
        with torch.no_grad():
            language, vision = model.model.language_model, model.model.visual
            language.embed_tokens.weight.normal_(0, 0.5)
            vision.merger.down_proj.weight.normal_(0, 0.15)
            vision.embeddings.position_embedding.weight.normal_(0, 0.3)
            vision.patch_embed.proj.weight.normal_(0, 0.05)
            for layer in language.layers:
                layer.post_self_attn_layernorm.weight.fill_(0.3)
                layer.post_mlp_layernorm.weight.fill_(0.3)
    model.generation_config.eos_token_id = special[END]
    model.generation_config.pad_token_id = special[END]
    return model


class VisionWeights(NamedTuple):
    """A vision tower's weights in one dtype; of a block: qkv, projection, gate and up, down."""

    patch: tuple[Tensor, Tensor]
    blocks: list[tuple[Tensor, Tensor, Tensor, Tensor]]
    down: tuple[Tensor, Tensor]
    merger: tuple[Tensor, Tensor, Tensor]


class TrainingForward:
    """The model's function, in batches.

    Parameters
    ----------
    model : Glm4vForConditionalGeneration
        Holds the parameters, float32.
    dtype : torch.dtype
        Of the computation: bfloat16 with the compiled kernels on a CPU, else through plain operations.
    """

    def __init__(self, model: Any, dtype: torch.dtype = torch.bfloat16) -> None:
        self.model, self.dtype = model, dtype
        self.vision, self.language = model.model.visual, model.model.language_model
        on_cpu = next(model.parameters()).device.type == "cpu"
        fused = on_cpu and dtype == torch.bfloat16 and kernels.available()
        self.ops: ModuleType = kernels if fused else operations
        self._grids: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def vision_weights(self) -> VisionWeights:
        """The vision tower's weights in the computation's dtype, for any number of :meth:`see` before the next step."""
        vision, cast = self.vision, self._cast
        kernel = vision.patch_embed.proj.weight
        down = vision.downsample.weight
        return VisionWeights(
            # Colours and the doubled frame hold the same grey picture: their weights add up.
            patch=(cast(kernel.sum((1, 2)).flatten(1)), cast(vision.patch_embed.proj.bias)),
            blocks=[
                (cast(block.attn.qkv.weight), cast(block.attn.proj.weight), *self._mlp_weights(block.mlp))
                for block in vision.blocks
            ],
            down=(cast(down.permute(0, 2, 3, 1).reshape(down.shape[0], -1)), cast(vision.downsample.bias)),
            merger=(cast(vision.merger.proj.weight), *self._mlp_weights(vision.merger)),
        )

    def see(self, pictures: Tensor, weights: VisionWeights | None = None) -> Tensor:
        """Visual embeddings of pictures of one size.

        Parameters
        ----------
        pictures : Tensor
            uint8 ``(batch, height, width)``, grey, pixels; both sides multiples of ``PATCH * MERGE``.
        weights : VisionWeights, optional
            From :meth:`vision_weights`, when several sizes are seen in one step.

        Returns
        -------
        Tensor
            ``(batch, tokens, text_hidden)``, tokens row by row.
        """
        vision, ops, cast = self.vision, self.ops, self._cast
        w = weights or self.vision_weights()
        config, eps = vision.config, vision.config.rms_norm_eps
        batch, rows, columns = pictures.shape[0], pictures.shape[1] // PATCH, pictures.shape[2] // PATCH
        cos, sin, sampling = self._grid(rows, columns)
        x = (pictures.float() / 255 - WHITE["mean"]) / WHITE["std"]
        # Patches of one merged token stand together, as the image processor delivers them.
        x = x.view(batch, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH)
        x = x.permute(0, 1, 4, 2, 5, 3, 6).reshape(batch, rows * columns, PATCH * PATCH).to(self.dtype)
        x = ops.rms_norm(F.linear(x, *w.patch), vision.post_conv_layernorm.weight, eps)
        x = x + cast(sampling @ vision.embeddings.position_embedding.weight)
        for block, (qkv, projection, gate_up, down) in zip(vision.blocks, w.blocks, strict=True):
            h = F.linear(ops.rms_norm(x, block.norm1.weight, eps), qkv)
            h = ops.attention(h, cos, sin, None, config.num_heads, config.num_heads, False)
            x = x + F.linear(h, projection)
            h = ops.rms_norm(x, block.norm2.weight, eps)
            x = x + F.linear(ops.swiglu(F.linear(h, gate_up)), down)
        x = ops.rms_norm(x, vision.post_layernorm.weight, eps)
        x = F.linear(x.reshape(batch, -1, MERGE * MERGE * x.shape[-1]), *w.down)
        norm = vision.merger.post_projection_norm
        projection, gate_up, down = w.merger
        x = F.linear(x, projection)
        x = F.gelu(F.layer_norm(x, (x.shape[-1],), cast(norm.weight), cast(norm.bias), norm.eps))
        return F.linear(ops.swiglu(F.linear(x, gate_up)), down)

    def read(self, embeddings: Tensor, positions: Tensor, groups: Tensor) -> Tensor:
        """Last hidden states of a packed text.

        Parameters
        ----------
        embeddings : Tensor
            ``(batch, tokens, text_hidden)``.
        positions : Tensor
            int64 ``(batch, 3, tokens)``.
        groups : Tensor
            int32 ``(batch, tokens, 2)``, see :func:`qvpic_rag.reader.operations.visible`.
        """
        ops, cast = self.ops, self._cast
        config = self.language.config
        cos, sin = self._angles(positions)
        x, eps = embeddings, config.rms_norm_eps
        for layer in self.language.layers:
            attention = layer.self_attn
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            h = ops.rms_norm(x, layer.input_layernorm.weight, eps)
            qkv = F.linear(
                h, cast(torch.cat([p.weight for p in projections])), cast(torch.cat([p.bias for p in projections]))
            )
            h = ops.attention(qkv, cos, sin, groups, config.num_attention_heads, config.num_key_value_heads, True)
            h = F.linear(h, cast(attention.o_proj.weight))
            x = ops.rms_norm(h, layer.post_self_attn_layernorm.weight, eps, x)
            h = ops.rms_norm(x, layer.post_attention_layernorm.weight, eps)
            h = ops.swiglu(F.linear(h, cast(layer.mlp.gate_up_proj.weight)))
            x = ops.rms_norm(F.linear(h, cast(layer.mlp.down_proj.weight)), layer.post_mlp_layernorm.weight, eps, x)
        hidden: Tensor = ops.rms_norm(x, self.language.norm.weight, eps)
        return hidden

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings of token ids, in the computation's dtype."""
        return F.embedding(token_ids, self.language.embed_tokens.weight).to(self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 ``(..., vocabulary)``."""
        return F.linear(hidden, self._cast(self.model.lm_head.weight)).float()

    def _cast(self, weight: Tensor) -> Tensor:
        return weight.to(self.dtype)

    def _mlp_weights(self, mlp: Any) -> tuple[Tensor, Tensor]:
        """Gate and up in one matrix, and down."""
        return self._cast(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])), self._cast(mlp.down_proj.weight)

    def _angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin ``(batch, tokens, rotary)``: each section of frequencies turns with its own axis."""
        rotary = self.language.rotary_emb
        sections = self.language.config.rope_parameters["mrope_section"]
        axis = torch.repeat_interleave(torch.arange(3), torch.tensor(sections)).to(positions.device)
        turns = positions.float()[:, axis].transpose(1, 2) * rotary.inv_freq.float()
        turns = turns.repeat_interleave(2, dim=-1)
        return turns.cos(), turns.sin()

    def _grid(self, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Vision rotary cos, sin ``(1, patches, head_dim)``, and the matrix that samples the position embedding."""
        known = self._grids.get((rows, columns))
        if known is not None:
            return known
        down, right = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")

        def by_token(index: Tensor) -> Tensor:
            return index.view(rows // MERGE, MERGE, columns // MERGE, MERGE).transpose(1, 2).flatten()

        device = next(self.vision.parameters()).device
        h, w = by_token(down).to(device), by_token(right).to(device)
        frequencies = self.vision.rotary_pos_emb.inv_freq.float()
        turns = torch.cat([h[:, None] * frequencies, w[:, None] * frequencies], -1)
        turns = torch.cat([turns, turns], -1)[None]
        places = torch.stack((((w + 0.5) / columns) * 2 - 1, ((h + 0.5) / rows) * 2 - 1), -1)[None, :, None]
        side = int(self.vision.embeddings.num_positions**0.5)
        # Bicubic sampling is linear in the table: sampling the unit vectors gives its matrix.
        units = torch.eye(side * side, device=device).view(1, side * side, side, side)
        sampled = F.grid_sample(units, places, mode="bicubic", align_corners=False, padding_mode="border")
        self._grids[rows, columns] = turns.cos(), turns.sin(), sampled[0, :, :, 0].T.contiguous()
        return self._grids[rows, columns]
