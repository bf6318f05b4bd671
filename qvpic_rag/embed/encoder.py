"""Texts to vectors in batches of similar length."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from qvpic_rag.embed.load import Loaded
from qvpic_rag.embed.settings import Settings
from qvpic_rag.errors import ConfigError, InputError, ModelNotFoundError
from qvpic_rag.records import Signals, well_formed

__all__ = ["TextEncoder"]

_BATCH_TEXTS = 64
_BATCH_TOKENS = 8192  # padding included; bounds memory

_Row = dict[str, list[int]]


class TextEncoder:
    """A loaded embedding model; safe to use from several threads.

    Attributes
    ----------
    name, digest, signals_digest : str
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
        self, name: str, digest: str, settings: Settings, loaded: Loaded, device: str, signals_digest: str = ""
    ) -> None:
        tokenizer = loaded.tokenizer
        self.name = name
        self.digest = digest
        self.signals_digest = signals_digest
        self.settings = settings
        self._tokenizer = tokenizer
        self._tokenizer_lock = threading.Lock()  # a fast tokenizer keeps its truncation settings in itself
        self._forward = loaded.forward
        self._heads = loaded.heads
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
        rows = self._rows(texts, query)
        vectors = np.empty((len(rows), self.dimension), np.float32)
        for batch in _batches([len(row["input_ids"]) for row in rows]):
            vectors[batch] = self._vectors([rows[place] for place in batch])
        return vectors

    def signals(self, texts: Sequence[str], *, query: bool = False) -> tuple[NDArray[np.float32], list[Signals]]:
        """Embed texts and weigh their tokens, in one pass.

        Lexical weights are BGE-M3's: a token that stands several times has its largest weight, special tokens none
        (arXiv 2402.03216, section 3.2; FlagEmbedding's ``encode``).

        Parameters
        ----------
        texts, query
            As for :meth:`encode`.

        Returns
        -------
        tuple[NDArray[np.float32], list[Signals]]
            What :meth:`encode` returns, and for each text its signals, vectors in float32.

        Raises
        ------
        ConfigError
            The model has no such heads.
        InputError
            As :meth:`encode`.
        """
        if self._heads is None:
            raise ConfigError(
                f"The embedder {self.name!r} has no lexical and multi-vector heads, which router='hybrid' needs; use "
                "router='dense', or a bank made with embedder='BAAI/bge-m3'."
            )
        rows = self._rows(texts, query)
        dense = np.empty((len(rows), self.dimension), np.float32)
        found: dict[int, Signals] = {}
        for batch in _batches([len(row["input_ids"]) for row in rows]):
            with torch.inference_mode():
                vectors, weights, multi = self._heads(self._padded([rows[place] for place in batch]))
                dense[batch] = torch.nn.functional.normalize(vectors.float(), dim=-1).cpu().numpy()
                weights, multi = weights.float().cpu(), multi.float().cpu()
            for at, place in enumerate(batch):
                ids = np.asarray(rows[place]["input_ids"])
                found[place] = self._signals(ids, weights[at].numpy(), multi[at].numpy())
        return dense, [found[place] for place in range(len(rows))]

    def _signals(self, ids: NDArray[np.int64], weights: NDArray[np.float32], vectors: NDArray[np.float32]) -> Signals:
        """Signals of one text from its token ids and from weights and vectors that may be padded."""
        known = self._tokenizer
        special = [known.cls_token_id, known.eos_token_id, known.pad_token_id, known.unk_token_id]
        weights = np.where(np.isin(ids, [each for each in special if each is not None]), 0, weights[: len(ids)])
        terms, where = np.unique(ids, return_inverse=True)
        largest = np.zeros(len(terms), np.float32)
        np.maximum.at(largest, where, weights)
        return Signals(terms[largest > 0], largest[largest > 0], vectors[: len(ids) - 1].copy())

    def _rows(self, texts: Sequence[str], query: bool) -> list[_Row]:
        if isinstance(texts, str) or any(not isinstance(text, str) for text in texts):
            raise InputError("Give the texts to embed as a list of strings.")
        prompt = self.settings.query_prompt if query else self.settings.text_prompt
        return self._tokens([prompt + text for text in texts]) if texts else []

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

    def _padded(self, rows: list[_Row]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        batch = {}
        for key in rows[0]:
            pad = self._padding.get(key, 0)
            padded = [row[key] + [pad] * (width - len(row[key])) for row in rows]
            batch[key] = torch.tensor(padded, dtype=torch.long, device=self._device)
        return batch

    def _vectors(self, rows: list[_Row]) -> NDArray[np.float32]:
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(self._forward(self._padded(rows)).float(), dim=-1)
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
