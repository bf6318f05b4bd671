"""What methods are compared on: one model, and with it prompts, pictures and embeddings that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

from PIL import Image

from qvpic_rag.baselines.text_template import TextTemplate
from qvpic_rag.embed import Embedder
from qvpic_rag.errors import ConfigError, TemplateError, UnsupportedModelError
from qvpic_rag.models import LanguageModel, VisionLanguageModel
from qvpic_rag.records import Message, Page
from qvpic_rag.template import ChatTemplate

__all__ = ["Draws", "Prompts", "Subject", "Template"]

_PICTURES = 64  # drawn pages that are remembered, so that methods over the same pictures draw them once
_NO_PICTURES = "Model {!r} reads no pictures; choose methods over text (such as full@text)."


class Draws(Protocol):
    """Draws pages; a :class:`~qvpic_rag.render.Renderer` does."""

    def image(self, page: Page, dpi: int) -> Image.Image:
        """A page as an RGB picture."""


class Template(Protocol):
    """A chat template, cut where the context stands."""

    prefix: tuple[int, ...]
    separator: tuple[int, ...]

    def suffix(self, messages: Sequence[Message]) -> list[int]:
        """Token ids after the context."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """Token ids of a request's parts. Text is tokenised part by part in every method, so all see the same tokens."""

    model: LanguageModel
    template: Template

    def head(self, before: str) -> list[int]:
        """What stands before the context: the template's prefix and the user's words there."""
        return [*self.template.prefix, *self._ids(before)]

    def chunk(self, page: Page) -> list[int]:
        """A page as text, with a blank line after it."""
        return self._ids(page.text.strip() + "\n\n")

    def tail(self, after: str) -> list[int]:
        """What stands after the context."""
        return self.template.suffix([Message("user", after)])

    @property
    def pictures(self) -> ChatTemplate:
        """The template, which must take pictures; ``UnsupportedModelError`` where it takes none."""
        if not isinstance(self.template, ChatTemplate):
            raise UnsupportedModelError(_NO_PICTURES.format(self.model.checkpoint.name))
        return self.template

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.model.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids


class Subject:
    """The model under test.

    Parameters
    ----------
    model : LanguageModel
        With pictures, or a text model for methods over text alone.
    renderer : Draws, optional
        Draws pages; needed by methods over pictures.
    embedder : Embedder, optional
        Needed by methods that choose pages.
    batch_size : int
        Pages per compiling forward pass.
    """

    def __init__(
        self,
        model: LanguageModel,
        renderer: Draws | None = None,
        embedder: Embedder | None = None,
        *,
        batch_size: int = 4,
    ) -> None:
        self.model, self.renderer, self.batch_size = model, renderer, batch_size
        self._embedder = embedder
        self.image = lru_cache(maxsize=_PICTURES)(self._image)

    @property
    def vision(self) -> VisionLanguageModel:
        """The model, which must read pictures.

        Raises
        ------
        UnsupportedModelError
            It does not.
        """
        if not isinstance(self.model, VisionLanguageModel):
            raise UnsupportedModelError(_NO_PICTURES.format(self.model.checkpoint.name))
        return self.model

    @property
    def embedder(self) -> Embedder:
        """Text to vectors; ``ConfigError`` where there is none."""
        if self._embedder is None:
            raise ConfigError("This method chooses pages by their embeddings; give an embedder.")
        return self._embedder

    @cached_property
    def prompts(self) -> Prompts:
        """Prompts of the model's template as it is."""
        return self._prompts(None)

    @cached_property
    def short_prompts(self) -> Prompts:
        """Prompts with the shortest prefix that the template allows: with an empty system turn where that is shorter
        than the template's default one, and the template takes one."""
        try:
            empty = self._prompts("")
        except TemplateError:
            return self.prompts
        return min(self.prompts, empty, key=lambda prompts: len(prompts.template.prefix))

    def _prompts(self, system_prompt: str | None) -> Prompts:
        model = self.model
        if isinstance(model, VisionLanguageModel):
            return Prompts(model, ChatTemplate(model, system_prompt=system_prompt))
        return Prompts(model, TextTemplate(model, system_prompt=system_prompt))

    def _image(self, page: Page, dpi: int) -> Image.Image:
        if self.renderer is None:
            raise ConfigError("Methods over pictures need a renderer; give a render profile.")
        return self.renderer.image(page, dpi)
