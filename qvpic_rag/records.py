"""Frozen records that the stages hand to each other.

Shapes are written ``[layers, kv_heads, tokens, head_dim]``; ``axes`` is 3 for M-RoPE
(temporal, height, width) and 1 for plain rotary positions. Times are milliseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from qvpic_rag.packing import Packed

__all__ = [
    "Answer",
    "BlockKey",
    "Document",
    "KVBlock",
    "Message",
    "Page",
    "Recipe",
    "Route",
    "RoutedPage",
    "Signals",
    "Timing",
    "Usage",
    "stable_digest",
    "well_formed",
]


def stable_digest(value: object) -> str:
    """SHA-256 (hex) of a JSON-able value, independent of mapping order."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def well_formed(text: str) -> str:
    """Half a surrogate pair, from undecodable command-line bytes, is no character; tokenizers refuse it."""
    return text.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Document:
    """A text and the name it is known by.

    Attributes
    ----------
    text : str
        The whole text.
    source : str
        What a user calls it: a path as given, or any other name. Unique within a bank's namespace.
    metadata : Mapping[str, Any]
        JSON-able, kept with the document, never interpreted.
    """

    text: str
    source: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """The routing unit: the text that one rendered image shows.

    Attributes
    ----------
    lines : tuple[str, ...]
        The drawn lines, top to bottom, decided once in points; the same at every DPI.
    text : str
        The source text those lines show (this is what is embedded).
    source : str
        The document's source.
    number : int
        Index of the page in its document, from 0.
    """

    lines: tuple[str, ...]
    text: str
    source: str
    number: int

    @cached_property  # asked for many times in each request
    def digest(self) -> str:
        """SHA-256 (hex) of the drawn lines: pages that look alike share it, whatever document they are in."""
        return stable_digest(list(self.lines))


@dataclass(frozen=True, eq=False)
class Signals:
    """What BGE-M3 says of a text besides its embedding.

    Attributes
    ----------
    token_ids : NDArray[np.int64]
        ``[terms]``, ascending, each once: the text's tokens that weigh something.
    weights : NDArray[np.float32]
        ``[terms]``, above 0: how much each of them says.
    vectors : NDArray[np.float32] or NDArray[np.float16]
        ``[tokens, dimension]``, rows L2-normalised: one per token after the first, in the text's order.
    """

    token_ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    vectors: npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class BlockKey:
    """Everything that decides the content of a stored block; see :meth:`digest`.

    A block whose stored key differs in any field is never used. ``page`` is :attr:`Page.digest`, or the digest of
    whatever content the block holds. All fields are part of the digest, each under its own tag. ``storage`` is the form
    of the block's numbers: ``native``, ``int8`` or ``int4``.
    """

    model: str
    dtype: str
    prefix: str
    processor: str
    profile: str
    conditioning: str
    dpi: int
    page: str
    namespace: str
    storage: str = "native"

    @cached_property  # asked for many times in each request
    def digest(self) -> str:
        """SHA-256 (hex) over the tagged fields; names the block's file."""
        return stable_digest({"qvpic-block": 1, **self.tagged()})

    def tagged(self) -> dict[str, Any]:
        """The fields by name, ``storage`` only where it is not ``native``.

        Blocks had no other form once, and files of that time keep their names.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if (name, value) != ("storage", "native")}

    def differing(self, other: BlockKey) -> list[str]:
        """Names of the fields in which two keys differ, in declaration order."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


@dataclass(frozen=True)
class Recipe:
    """What a bank was made with; every block and embedding in it follows this one recipe.

    Attributes
    ----------
    model : str
        Name or path the model was loaded from.
    revision : str
        Hub commit, or "" for a local folder.
    fingerprint : str
        SHA-256 over architecture config and weights.
    dtype : str
        ``bfloat16``, ``float16`` or ``float32``.
    system_prompt : str | None
        System prompt set at construction; part of the prefix.
    prefix : str
        Digest of the chat template's prefix, page wrapper and separator token ids.
    processor : str
        Digest of the image processor's settings.
    profile : Mapping[str, Any]
        The render profile's fields.
    profile_digest : str
        Digest of the render profile, the renderer's version and the fonts' bytes.
    dpis : tuple[int, int]
        Low and high resolution in dots per inch.
    conditioning : str
        ``native``: pages are compiled under the model's own chat-template prefix.
    embedder : str
        Name or path of the embedding model.
    embedder_digest : str
        Digest of its weights and pooling.
    dimension : int
        Length of an embedding.
    storage : tuple[str, str]
        Form of the blocks at low and high resolution: ``native``, ``int8`` or ``int4``.
    """

    model: str
    revision: str
    fingerprint: str
    dtype: str
    system_prompt: str | None
    prefix: str
    processor: str
    profile: Mapping[str, Any]
    profile_digest: str
    dpis: tuple[int, int]
    conditioning: str
    embedder: str
    embedder_digest: str
    dimension: int
    storage: tuple[str, str] = ("native", "native")

    def block_key(self, page: str, dpi: int, namespace: str) -> BlockKey:
        """The key of page digest ``page`` at ``dpi``; what is no page's (another resolution) stays ``native``."""
        return BlockKey(
            model=self.fingerprint,
            dtype=self.dtype,
            prefix=self.prefix,
            processor=self.processor,
            profile=self.profile_digest,
            conditioning=self.conditioning,
            dpi=dpi,
            page=page,
            namespace=namespace,
            storage=dict(zip(self.dpis, self.storage, strict=True)).get(dpi, "native"),
        )


@dataclass(frozen=True, eq=False)
class KVBlock:
    """One page's KV cache, position-independent.

    Attributes
    ----------
    keys, values : torch.Tensor or Packed
        ``[layers, kv_heads, tokens, head_dim]`` in the model's dtype, or in the smaller form that ``key.storage``
        names; keys before rotary embedding. Read only.
    token_ids : torch.Tensor
        int64 ``[tokens]``.
    positions : torch.Tensor
        int64 ``[axes, tokens]``, counted from the block's own start.
    span : int
        By how much the next block's start advances (for an image under M-RoPE ``max(t, h, w)`` of its merged
        grid, not its token count).
    key : BlockKey
        What the block is a cache of.
    """

    keys: torch.Tensor | Packed
    values: torch.Tensor | Packed
    token_ids: torch.Tensor
    positions: torch.Tensor
    span: int
    key: BlockKey

    @property
    def tokens(self) -> int:
        """Number of KV tokens."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values as they are stored."""
        return int(self.keys.nbytes + self.values.nbytes)


@dataclass(frozen=True)
class Message:
    """One chat turn: ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True)
class RoutedPage:
    """One page of a request: ``rank`` is 0 for the most relevant page; ``tokens`` its active KV tokens."""

    page_id: str
    source: str
    number: int
    dpi: int
    score: float
    rank: int
    promoted: bool
    tokens: int


@dataclass(frozen=True)
class Route:
    """Which pages a request used, in request order, and what was left out or done on the way.

    Attributes
    ----------
    pages : tuple[RoutedPage, ...]
        In request order.
    dropped : tuple[str, ...]
        Ids of pages left out because the request would not fit, lowest rank first.
    compiled : tuple[str, ...]
        Ids of pages whose block was missing or damaged and was compiled during the request.
    note : str
        "" or one sentence saying what is unusual, such as that no page was retrieved.
    """

    pages: tuple[RoutedPage, ...] = ()
    dropped: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Timing:
    """Milliseconds. ``ttft`` runs from before the query is embedded until the first token's id is known.

    ``compile`` is None unless a missing page was compiled during the request. ``wait`` is the time before all that in
    which the model answered other questions, None if there was none; ``ttft`` and ``total`` do not contain it.
    ``tiers`` is how many blocks were loaded from each tier of the bank: ``ram``, ``disk``, ``remote``.
    """

    embed: float = 0.0
    search: float = 0.0
    route: float = 0.0
    load: float = 0.0
    assemble: float = 0.0
    prefill: float = 0.0
    ttft: float = 0.0
    decode: float = 0.0
    total: float = 0.0
    compile: float | None = None
    wait: float | None = None
    tiers: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, float]:
        """The stages by name; ``compile`` and ``wait`` only where there was one."""
        return {name: value for name, value in asdict(self).items() if name != "tiers" and value is not None}


@dataclass(frozen=True)
class Usage:
    """Tokens of a request and bytes of its active KV cache (prefix and pages)."""

    context_tokens: int
    query_tokens: int
    output_tokens: int
    kv_bytes: int


@dataclass(frozen=True)
class Answer:
    """What a question got.

    ``finish_reason`` is ``stop`` (end token or stop string), ``length`` or ``cancelled``; ``reasoning`` is what a
    thinking model wrote before its answer, "" for others.
    """

    text: str
    finish_reason: str
    route: Route
    timing: Timing
    usage: Usage
    reasoning: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The object that ``qvpic ask --json`` prints."""
        return {
            "answer": self.text,
            "reasoning": self.reasoning,
            "finish_reason": self.finish_reason,
            "pages": [asdict(page) for page in self.route.pages],
            "dropped": list(self.route.dropped),
            "compiled": list(self.route.compiled),
            "note": self.route.note,
            "timing": self.timing.to_dict(),
            "tiers": dict(self.timing.tiers),
            "usage": asdict(self.usage),
        }
