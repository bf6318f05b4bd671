"""Texts to vectors in batches of similar length."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qvpic_rag.embed.load import Forward
from qvpic_rag.embed.settings import Settings
from qvpic_rag.errors import InputError, ModelNotFoundError
from qvpic_rag.records import well_formed

__all__ = ["TextEncoder"]

_BATCH_TEXTS = 64
_BATCH_TOKENS = 8192  # padding included; bounds memory

_Row = dict[str, list[int]]


class TextEncoder:
    """A loaded embedding model; safe to use from several threads.

    Attributes
    ----------
    name, digest : str
        See :class:`qvpic_rag.embed.Embedder`.
    settings : Settings
        Pooling, prompts and the length limit.
    dimension : int
        Length of a vector.

    Raises
    ------
    ModelNotFoundError
        The weights give NaN or infinity.
    """

    def __init__(
        self, name: str, digest: str, settings: Settings, tokenizer: Any, forward: Forward, device: str
    ) -> None:
        self.name = name
        self.digest = digest
        self.settings = settings
        self._tokenizer = tokenizer
        self._tokenizer_lock = threading.Lock()  # a fast tokenizer keeps its truncation settings in itself
        self._forward = forward
        self._device = device
        # Padding is masked, so any id serves where the tokenizer has none.
        self._padding = {"input_ids": 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id}
        probe = self._vectors(self._tokens(["probe"]))
        if not np.isfinite(probe).all():
            raise ModelNotFoundError(
                f"The embedder {name!r} gives NaN or infinity; its weights are damaged, get it again."
            )
        self.dimension = probe.shape[1]

    def encode(self, texts: Sequence[str], *, query: bool = False) -> NDArray[np.float32]:
        """Embed texts.

        Parameters
        ----------
        texts : Sequence[str]
            A text longer than ``settings.max_tokens`` is represented by its beginning.
        query : bool
            The texts are questions: use the model's prompt for those.

        Returns
        -------
        NDArray[np.float32]
            ``[len(texts), dimension]``, C-contiguous, rows L2-normalised, in the order of ``texts``.

        Raises
        ------
        InputError
            ``texts`` is one string, holds something else than strings, or a text gives no tokens at all.
        """
        if isinstance(texts, str) or any(not isinstance(text, str) for text in texts):
            raise InputError("Give the texts to embed as a list of strings.")
        prompt = self.settings.query_prompt if query else self.settings.text_prompt
        rows = self._tokens([prompt + text for text in texts]) if texts else []
        vectors = np.empty((len(rows), self.dimension), np.float32)
        for batch in _batches([len(row["input_ids"]) for row in rows]):
            vectors[batch] = self._vectors([rows[place] for place in batch])
        return vectors

    def _tokens(self, texts: list[str]) -> list[_Row]:
        clean = [well_formed(text) for text in texts]
        if self.settings.lower_case:
            clean = [text.lower() for text in clean]
        with self._tokenizer_lock:
            found = self._tokenizer(clean, truncation=True, max_length=self.settings.max_tokens)
        rows = [{key: found[key][place] for key in found} for place in range(len(clean))]
        empty = next((place for place, row in enumerate(rows) if not row["input_ids"]), None)
        if empty is not None:
            raise InputError(f"Text {empty} gives no tokens, so it has no embedding; leave it out.")
        return rows

    def _vectors(self, rows: list[_Row]) -> NDArray[np.float32]:
        width = max(len(row["input_ids"]) for row in rows)
        batch = {}
        for key in rows[0]:
            pad = self._padding.get(key, 0)
            padded = [row[key] + [pad] * (width - len(row[key])) for row in rows]
            batch[key] = torch.tensor(padded, dtype=torch.long, device=self._device)
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(self._forward(batch).float(), dim=-1)
        found: NDArray[np.float32] = vectors.cpu().numpy()
        return found


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts that are encoded together, the longest first, so that too little memory shows at once."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    start = 0
    while start < len(order):
        size = max(1, min(_BATCH_TEXTS, _BATCH_TOKENS // lengths[order[start]]))
        yield order[start : start + size]
        start += size
