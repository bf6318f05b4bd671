"""The shapes of published models: what a model costs, without its weights.

Numbers are those of the models' published ``config.json`` files. ``scale`` leaves out layers of the decoder and of the
vision tower and keeps every width, so each layer that is left costs what it costs in the whole model. Embedding, output
head and patch merger are whole at every scale. Of a time at a scale below 1, the part that is spent in layers therefore
grows with ``1 / scale`` and the rest stays, and a ratio of two times is that of the whole model only as far as both are
spent in layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING

from qvpic_rag.errors import ConfigError

__all__ = ["GEOMETRIES", "Geometry", "find_geometry"]


@dataclass(frozen=True)
class Geometry:
    """The shape of one model.

    Attributes
    ----------
    model_type : str
        Its architecture in transformers.
    parameters : float
        Published number of parameters, vision tower included.
    text : Mapping[str, Any]
        Fields of the text configuration.
    vision : Mapping[str, Any]
        Fields of the vision configuration.
    tied : bool
        Whether the output head is the embedding.
    pixels : tuple[int, int]
        Least and greatest area of a picture, as the image processor's ``size`` counts it.
    centred : bool
        Pixels are normalised to -1 ... 1; by CLIP's mean and deviation otherwise.
    """

    model_type: str
    parameters: float
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    tied: bool
    pixels: tuple[int, int]
    centred: bool = False

    def layers(self, scale: float) -> tuple[int, int]:
        """Layers of decoder and vision tower at a scale.

        Raises
        ------
        ConfigError
            The scale is not above 0 and at most 1.
        """
        if not 0 < scale <= 1:
            raise ConfigError(f"scale must be above 0 and at most 1, not {scale:g}; 1 is the whole model.")

        def left(layers: int) -> int:
            return math.ceil(scale * layers - 1e-9)  # 0.55 * 40 is a little more than 22

        return left(self.text["num_hidden_layers"]), left(self.vision["depth"])

    def config(self, scale: float, ids: Mapping[str, int]) -> Any:
        """The transformers configuration; ``ids`` are fields for the ids of special tokens.

        Raises ``ConfigError`` as :meth:`layers` does.
        """
        decoder, tower = self.layers(scale)
        vision = {**self.vision, "depth": tower}
        for name in ("fullatt_block_indexes", "deepstack_visual_indexes"):
            if name in vision:
                vision[name] = _left(vision[name], self.vision["depth"], tower)
        return CONFIG_MAPPING[self.model_type](
            text_config={**self.text, "num_hidden_layers": decoder},
            vision_config=vision,
            tie_word_embeddings=self.tied,
            **ids,
        )


def _left(indexes: Sequence[int], depth: int, kept: int) -> list[int]:
    """Places of special vision layers among ``kept`` of ``depth``: as large a share of all layers, at least one."""
    scaled = sorted({max(0, (index + 1) * kept // depth - 1) for index in indexes})
    return scaled[-max(1, round(len(indexes) * kept / depth)) :]


def _qwen2_5(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, Any]:
    text = {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    }
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": hidden,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    return {"model_type": "qwen2_5_vl", "text": text, "vision": vision, "pixels": (56 * 56, 28 * 28 * 16384)}


def _glm_rope(sections: list[int]) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": sections}


GEOMETRIES: Mapping[str, Geometry] = {
    "glm-4.1v-9b": Geometry(
        model_type="glm4v",
        parameters=10.3e9,
        text={
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "vocab_size": 151552,
            "max_position_embeddings": 65536,
            "rope_parameters": _glm_rope([8, 12, 12]),
        },
        vision={
            "depth": 24,
            "hidden_size": 1536,
            "intermediate_size": 13696,
            "num_heads": 12,
            "image_size": 336,
            "patch_size": 14,
            "out_hidden_size": 4096,
        },
        tied=False,
        pixels=(112 * 112, 28 * 28 * 12288),
    ),
    "qwen2.5-vl-3b": Geometry(**_qwen2_5(2048, 11008, 36, 16, 2, 151936), parameters=3.75e9, tied=True),
    "qwen2.5-vl-7b": Geometry(**_qwen2_5(3584, 18944, 28, 28, 4, 152064), parameters=8.29e9, tied=False),
    "qwen3-vl-4b": Geometry(
        model_type="qwen3_vl",
        parameters=4.44e9,
        text={
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [24, 20, 20],
                "mrope_interleaved": True,
            },
        },
        vision={
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_heads": 16,
            "out_hidden_size": 2560,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [5, 11, 17],
        },
        tied=True,
        pixels=(256 * 256, 4096 * 4096),
        centred=True,
    ),
    # No published model: GLM's architecture so small that tests run it in a second; a visual token is 56 x 56 pixels.
    "tiny": Geometry(
        model_type="glm4v",
        parameters=0.325e6,
        text={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
            "max_position_embeddings": 4096,
            "rope_parameters": _glm_rope([1, 1, 2]),
        },
        vision={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "image_size": 336,
            "patch_size": 28,
            "out_hidden_size": 64,
        },
        tied=False,
        pixels=(112 * 112, 28 * 28 * 12288),
    ),
}
"""Name -> shape."""


def find_geometry(name: str) -> Geometry:
    """The geometry of that name.

    Raises
    ------
    ConfigError
        There is none.
    """
    if name not in GEOMETRIES:
        raise ConfigError(f"geometry must be one of {', '.join(GEOMETRIES)}, not {name!r}.")
    return GEOMETRIES[name]
