"""What the engine needs of a vision-language model, and what differs between families.

A family is one subclass of :class:`VisionLanguageModel` in a file of its own. It says where its parts are, how pictures
become forward arguments, and how positions are counted. Everything else is shared. What text alone needs is
:class:`LanguageModel`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from qvpic_rag.models.fingerprint import config_digest
from qvpic_rag.rope import Rotary

__all__ = ["Checkpoint", "LanguageModel", "VisionInputs", "VisionLanguageModel"]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was loaded from disk: the parts of one model and where they came from.

    ``template`` is the chat template's Jinja text; ``revision`` the hub commit or ""; ``fingerprint`` a SHA-256 over
    architecture and weights.
    """

    model: Any
    tokenizer: Any
    image_processor: Any
    template: str
    name: str
    revision: str
    fingerprint: str


@dataclass(frozen=True, eq=False)
class VisionInputs:
    """Pictures as the model takes them.

    Attributes
    ----------
    tensors : Mapping[str, Tensor]
        Forward arguments (pixel values, grids ...) on the model's device.
    tokens : tuple[int, ...]
        Visual tokens (placeholders in the prompt) of each picture.
    """

    tensors: Mapping[str, Tensor]
    tokens: tuple[int, ...]


class LanguageModel:
    """One loaded model behind the interface that compile, assemble and generate use for text.

    ``lock`` is held during every forward pass: hooks, dynamic rope frequencies and the random generator are shared
    state of the model object.
    """

    model_types: ClassVar[tuple[str, ...]]
    axes: ClassVar[int] = 1
    interleaved: ClassVar[bool] = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.model = checkpoint.model
        self.tokenizer = checkpoint.tokenizer
        self.lock = threading.RLock()
        self.rotary = Rotary(self.text_model.rotary_emb, self.axes, self.interleaved)
        attention: Any = self.attention(0)
        self.head_dim = int(attention.head_dim)
        self.layers = len(self.text_model.layers)
        self.kv_heads = int(self.value_module(attention).out_features) // self.head_dim

    @classmethod
    def unsupported_layers(cls, config: Any) -> list[str]:
        """Kinds of decoder layers in a configuration that do not keep all keys of all tokens, so cannot be linked."""
        text = config.get_text_config()
        kinds = getattr(text, "layer_types", None)
        if not kinds:
            kinds = ["sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"]
        return sorted(set(kinds) - {"full_attention"})

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype; keys and values have the same."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def base_model(self) -> Any:
        """The model without its language-model head; compiling pages needs no logits."""
        return self.model.model

    @property
    def text_model(self) -> Any:
        """The decoder: has ``layers`` (each with ``self_attn``) and ``rotary_emb``."""
        return self.model.model

    @property
    def max_context(self) -> int:
        """The model's context length, tokens."""
        return self.context_length(self.model.config)

    @staticmethod
    def context_length(config: Any) -> int:
        """The same, of a configuration."""
        return int(config.get_text_config().max_position_embeddings)

    def attention(self, layer: int) -> nn.Module:
        """The self-attention module of a layer."""
        module: nn.Module = self.text_model.layers[layer].self_attn
        return module

    def key_module(self, attention: nn.Module) -> nn.Module:
        """The module whose output is the unrotated key: the key norm where there is one, else the projection."""
        norm: nn.Module | None = getattr(attention, "k_norm", None)
        return norm if norm is not None else attention.k_proj  # type: ignore[return-value]

    def value_module(self, attention: nn.Module) -> Any:
        """The module whose output is the value."""
        return attention.v_proj

    def positions(self, token_ids: Tensor, vision: VisionInputs | None) -> Tensor:
        """Position ids int64 ``[axes, batch, tokens]`` of int64 ``token_ids`` ``[batch, tokens]`` starting at 0.

        Here plain counting: every token, visual or not, advances them by one.
        """
        batch, tokens = token_ids.shape
        return torch.arange(tokens, device=token_ids.device).expand(self.axes, batch, -1)

    def position_argument(self, positions: Tensor) -> Tensor:
        """Shape ``[axes, batch, tokens]`` positions as the model's ``position_ids`` argument wants them."""
        return positions if self.axes == 3 else positions[0]


class VisionLanguageModel(LanguageModel, ABC):
    """A model that reads pictures.

    ``counts_pictures`` says whether a picture is encoded differently when it is not the only one.
    """

    counts_pictures: ClassVar[bool] = False

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.image_processor = checkpoint.image_processor

    @property
    def text_model(self) -> Any:
        """The decoder, which is one part of the model here."""
        return self.model.model.language_model

    @property
    def image_token_id(self) -> int:
        """Id of the placeholder that stands for one visual token."""
        return int(self.model.config.image_token_id)

    @property
    def processor_digest(self) -> str:
        """SHA-256 (hex) of the image processor's settings."""
        return config_digest(self.image_processor.to_dict())

    @abstractmethod
    def encode_images(self, images: Sequence[Image.Image], *, together: bool) -> VisionInputs:
        """Turn RGB pictures into forward arguments.

        ``together=False``: one picture per sequence of a batch (compiling pages of equal size).
        ``together=True``: all pictures in one sequence (full prefill).
        """
