"""Time to the first token: linked caches beside full prefill, on a model of a published shape with random weights.

Methods take turns in a changing order, so what disturbs the machine disturbs all of them, and ratios are taken round by
round. The device is waited for at the end of every stage. Embedding the question is left out: it is another model's
work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from qvpic_rag.bench.geometry import find_geometry
from qvpic_rag.bench.pages import full_pages, glyph_renderer
from qvpic_rag.bench.random_model import build_model, image_processor
from qvpic_rag.bench.ttft_figures import QVPIC_METHOD, TtftFigures, environment
from qvpic_rag.bench.ttft_requests import Clock, First, Requests
from qvpic_rag.config import check_dpis
from qvpic_rag.errors import ConfigError, ContextOverflowError
from qvpic_rag.models.device import resolve_device

__all__ = ["TEXT_TOKENS", "Workload", "build_requests", "measure"]

TEXT_TOKENS = 1700
"""Text tokens of a full page of the ``glyph`` profile, measured with SmolLM2's tokenizer.

The median page of LongBench's 2WikiMQA, HotpotQA and MuSiQue has 1686, 1699 and 1716; that of a text without short
lines has 2305. A picture of any full page has the same visual tokens, so the lower figure favours text."""

_ROOM = 512  # tokens for prefix, page wrappers, question and the first token


@dataclass(frozen=True)
class Workload:
    """What is measured.

    Attributes
    ----------
    geometry : str
        One of :data:`~qvpic_rag.bench.geometry.GEOMETRIES`.
    scale : float
        Share of the layers, above 0 and at most 1; see :mod:`~qvpic_rag.bench.geometry` for what that means.
    pages : int
        Pages of the context, all of them full.
    promoted : int
        How many of them QV-PIC reads at high resolution.
    dpis : tuple[int, int]
        Low and high resolution.
    text_tokens : int
        Text tokens of a page.
    rounds : int
        How often each method is timed, after one round that does not count.

    Raises
    ------
    ConfigError
        A field is out of range.
    """

    geometry: str
    scale: float = 1.0
    pages: int = 10
    promoted: int = 4
    dpis: tuple[int, int] = (72, 120)
    text_tokens: int = TEXT_TOKENS
    rounds: int = 5

    def __post_init__(self) -> None:
        find_geometry(self.geometry).layers(self.scale)
        check_dpis(self.dpis)
        for name, least in (("pages", 1), ("promoted", 0), ("text_tokens", 1), ("rounds", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        if self.promoted > self.pages:
            raise ConfigError(f"promoted must be at most the number of pages, {self.pages}, not {self.promoted}.")


def build_requests(
    workload: Workload, *, device: str | None, dtype: str | None, say: Callable[[str], None]
) -> tuple[Requests, dict[str, Any]]:
    """Build the model, draw the pages and compile them; the settings say what came of it.

    Raises as :func:`measure` does.
    """
    geometry, target = find_geometry(workload.geometry), resolve_device(device)
    say("drawing pages")
    renderer = glyph_renderer()
    pages = full_pages(workload.pages, renderer)
    low, high = ([renderer.image(page, dpi) for page in pages] for dpi in workload.dpis)
    processor = image_processor(geometry)
    grids = processor(images=high, return_tensors="pt")["image_grid_thw"]
    visual = int(grids.prod(dim=-1).sum()) // int(processor.merge_size) ** 2
    limit = int(geometry.text["max_position_embeddings"])
    needed = max(visual, workload.pages * workload.text_tokens) + _ROOM
    if needed > limit:  # found out before gigabytes are filled
        raise ContextOverflowError(
            f"{workload.pages} pages need up to {needed} tokens and {workload.geometry} takes {limit}; measure fewer "
            "pages, a lower high DPI or fewer text tokens."
        )
    say("building the model")
    model = build_model(geometry, name=workload.geometry, scale=workload.scale, device=target, dtype=dtype)
    found = Requests(model, low, high, promoted=workload.promoted, text_tokens=workload.text_tokens, say=say)
    decoder, tower = geometry.layers(workload.scale)
    settings = asdict(workload) | {
        "layers": decoder,
        "vision_layers": tower,
        "parameters": sum(parameter.numel() for parameter in model.model.parameters()),
        "kv_bytes_per_token": 2 * model.layers * model.kv_heads * model.head_dim * model.dtype.itemsize,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(target),
        "attention": model.model.config._attn_implementation,
        "image_processor": type(model.image_processor).__name__,
        "question_tokens": found.question_tokens,
        "visual_tokens_high": visual,
    }
    return found, settings


def measure(
    workload: Workload,
    *,
    device: str | None = None,
    dtype: str | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> TtftFigures:
    """Time every method.

    Parameters
    ----------
    workload : Workload
        What is measured.
    device, dtype : str, optional
        As for ``load_model``: the first CUDA device in bfloat16, else the CPU in float32.
    progress : Callable[[int, int, str], None]
        Called with rounds done, rounds in all and what is being done.

    Raises
    ------
    ConfigError
        Unknown or absent device, unknown dtype.
    ContextOverflowError
        The pages do not fit the model's context.
    """
    total = workload.rounds + 1
    found, settings = build_requests(workload, device=device, dtype=dtype, say=lambda what: progress(0, total, what))
    low, high = workload.dpis
    methods: dict[str, Callable[[Clock], First]] = {
        f"full@{high}": partial(found.full_pictures, "high"),
        f"full@{low}": partial(found.full_pictures, "low"),
        "full@text": found.full_text,
        "pic@text/native": found.pic_text,
        QVPIC_METHOD: found.qvpic,
    }
    names = list(methods)
    target = resolve_device(device)
    tokens: dict[str, int] = {}
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    transfer: list[dict[str, float]] = []
    for turn in range(total):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            progress(turn, total, name)
            clock = Clock(target)
            tokens[name] = methods[name](clock).context
            stages[name].append(clock.stages)
        clock = Clock(target)
        found.transfer(clock)
        transfer.append(clock.stages)
    progress(total, total, "")
    return TtftFigures(
        settings=settings,
        environment=environment(target),
        tokens=tokens,
        offline={{"low": str(low), "high": str(high)}.get(form, form): s for form, s in found.offline.items()},
        stages={name: rounds[1:] for name, rounds in stages.items()},  # the first one warmed up
        transfer=transfer[1:],
    )
