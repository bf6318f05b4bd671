"""How well smolglyph reads and answers: the tables of its card and the gates, on text it never saw.

Everything goes through the engine: its renderer, its chat template, its compiler, its linking and its generation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from qvpic_rag.assemble import assemble
from qvpic_rag.config import GenerateConfig, RenderProfile
from qvpic_rag.errors import ConfigError, ModelNotFoundError
from qvpic_rag.generate import generate, prompt
from qvpic_rag.intervals import bootstrap
from qvpic_rag.models import BUNDLED, VisionLanguageModel
from qvpic_rag.models.smolglyph import ADAPTER
from qvpic_rag.reader.evaluate import Examiner, Outcome, character_errors
from qvpic_rag.reader.facts import PAGES_PER_WORLD
from qvpic_rag.reader.lessons import questions
from qvpic_rag.reader.smolglyph.corpus import Corpus
from qvpic_rag.reader.smolglyph.pages import DPIS
from qvpic_rag.reader.smolglyph.requests import ABOUT, BRIEFLY, REPEAT
from qvpic_rag.records import KVBlock, Message, Page

__all__ = ["GATES", "GlyphExaminer", "measure", "trained_on"]

GATES = {"prose": 0.10, "1": 0.65, "4": 0.55}
"""What smolglyph must reach at one of the resolutions to be offered: character error of prose at most, exact answers
about one and about four pages at least."""

_METHODS = ("full", "native")
_COUNTS = (1, 4)
_PER_WORLD = 5  # questions about the pages of one world
_REPEATED, _ANSWERED, _TOLD = 320, 40, 60  # tokens of an answer at most
_SHORTEST, _CHARACTERS = 225, 450  # of a page of prose


def trained_on(model: str) -> str | None:
    """Digest of the text that an adapter was trained on; None for an older one, which does not say.

    Raises
    ------
    ModelNotFoundError
        The model is no adapter of smolglyph.
    """
    try:
        with safe_open((BUNDLED.get(model) or Path(model)) / ADAPTER, framework="pt") as file:
            digest: str | None = json.loads((file.metadata() or {})["smolglyph"]).get("corpus")
            return digest
    except (OSError, SafetensorError, KeyError, ValueError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{model} holds no smolglyph adapter; name a folder that `qvpic reader smolglyph export` wrote."
        ) from error


class GlyphExaminer:
    """Asks a model about unseen prose and facts.

    Parameters
    ----------
    model : VisionLanguageModel
        Loaded by the engine.
    corpus : Corpus
        That of the training run: its test split was not trained on.
    profile : RenderProfile
        How pages are drawn.

    Raises
    ------
    ConfigError
        No paragraph of the test split is long enough for a page.
    """

    def __init__(self, model: VisionLanguageModel, corpus: Corpus, profile: RenderProfile) -> None:
        self.examiner = Examiner(model, profile, DPIS)
        self.model = model
        self.prose = [text for text in corpus.test if len(text) >= _SHORTEST]
        if not self.prose:
            raise ConfigError(
                f"No paragraph of the text that was set aside has {_SHORTEST} characters, the least for a page of "
                "prose; name with --run a run whose text has longer paragraphs."
            )

    def pages(self, kind: str, count: int) -> list[tuple[int, Page]]:
        """``prose`` or ``facts`` pages, each with the number of what it belongs to; the same for the same count."""
        if kind == "facts":
            worlds = range(-(-count // 2))
            return [(number, page) for number in worlds for page in self.examiner.world(number)[1][:2]][:count]
        rng = random.Random("card prose")
        found: list[tuple[int, Page]] = []
        for number, text in enumerate(rng.sample(self.prose, min(count, len(self.prose)))):
            found += [(number, page) for page in self.examiner.renderer.pages(text[:_CHARACTERS], "card")[:1]]
        return found

    def repeated(self, kind: str, count: int, dpi: int) -> Iterator[tuple[int, str, str]]:
        """``(number, what a page says, what the reader wrote)``."""
        for number, page in self.pages(kind, count):
            yield number, page.text, self.ask([page], dpi, REPEAT, _REPEATED)

    def ask(self, pages: Sequence[Page], dpi: int, request: str, longest: int) -> str:
        """The answer to a request about pages, over their caches."""
        blocks = self.examiner.compiled(pages, dpi, "native")
        return self._over(blocks, request, longest)

    def _over(self, blocks: Sequence[KVBlock], request: str, longest: int) -> str:
        examiner = self.examiner
        ids = examiner.template.suffix([Message("user", request)])
        context = assemble(self.model, [examiner.prefix, *blocks], query_tokens=len(ids), new_tokens=longest)
        settings = GenerateConfig(max_new_tokens=longest)
        return generate(self.model, prompt(self.model, context, ids), settings).text.strip()

    def exact_match(
        self, count: int, worlds: Sequence[int], dpi: int, methods: Sequence[str] = _METHODS
    ) -> Iterator[Outcome]:
        """Questions about ``count`` pages of each world, answered over full prefill and over page caches."""
        examiner = self.examiner
        settings = GenerateConfig(max_new_tokens=_ANSWERED)
        mode = "low" if dpi == DPIS[0] else "high"
        for number in worlds:
            world, drawn = examiner.world(number)
            rng = random.Random(f"card {count} {number}")
            chosen = rng.sample(range(PAGES_PER_WORLD), count)
            shown = [drawn[index] for index in chosen]
            images = [examiner.renderer.image(page, dpi) for page in shown]
            blocks = examiner.compiled(shown, dpi, "native") if "native" in methods else []
            for question in questions(rng, world, chosen, _PER_WORLD):
                request = question.text + BRIEFLY
                for method in methods:
                    if method == "full":
                        text = examiner.full.answer([Message("user", request)], images, settings).text.strip()
                    else:
                        text = self._over(blocks, request, _ANSWERED)
                    yield Outcome(number, count, method, mode, "brief", question.kind, request, question.answer, text)

    def told(self, count: int, dpi: int) -> Iterator[tuple[str, str, str]]:
        """``(text, request, answer)``: what the reader says about pages of prose."""
        for number, page in self.pages("prose", count):
            request = ABOUT[0] if number % 2 == 0 else ABOUT[1]
            yield page.text, request, self.ask([page], dpi, request, _TOLD)


def measure(
    examiner: GlyphExaminer, *, pages: int, asked: int, progress: Callable[[str], Any] = lambda text: None
) -> Iterator[str]:
    """The card's tables as Markdown, then the gates, then a few answers to read.

    Parameters
    ----------
    pages : int
        Pages of each kind that are written down, at each resolution.
    asked : int
        Questions per cell: of the pages of ``asked / 5`` worlds.
    progress : Callable[[str], Any]
        Told what is being measured.
    """
    reached: dict[str, list[float]] = {}
    rows = []
    for kind in ("prose", "facts"):
        for dpi in DPIS:
            progress(f"{kind} pages at {dpi} DPI ...")
            read = list(examiner.repeated(kind, pages, dpi))
            wrong = [float(character_errors(said, found)) for _, said, found in read]
            found = bootstrap(wrong, [each[0] for each in read], [float(len(each[1])) for each in read])
            reached.setdefault(kind, []).append(found[0])
            rows.append([kind, f"{dpi} DPI", _percent(found), str(len(read))])
    yield _table(["pages of", "resolution", "character error, page written down", "pages"], rows)
    rows = []
    worlds = range(-(-asked // _PER_WORLD))
    for count in _COUNTS:
        for dpi in DPIS:
            progress(f"questions about {count} pages at {dpi} DPI ...")
            outcomes = list(examiner.exact_match(count, worlds, dpi))
            cells = []
            for method in _METHODS:
                chosen = [each for each in outcomes if each.method == method]
                found = bootstrap([float(each.right) for each in chosen], [each.world for each in chosen])
                reached.setdefault(str(count), []).append(found[0])
                cells.append(_percent(found))
            rows.append([str(count), f"{dpi} DPI", *cells, str(len(outcomes) // len(_METHODS))])
    yield _table(["pages", "resolution", "full prefill", "page caches, native", "questions"], rows)
    yield _gates(reached)
    progress("what is this about ...")
    told = [[_cell(text), _cell(request), _cell(answer)] for text, request, answer in examiner.told(6, DPIS[0])]
    yield _table(["page", "request", "answer"], told)


def _gates(reached: dict[str, list[float]]) -> str:
    rows = []
    for name, limit in GATES.items():
        best = min(reached[name]) if name == "prose" else max(reached[name])
        passed = best <= limit if name == "prose" else best >= limit
        title = "character error of prose" if name == "prose" else f"exact answers, {name} page(s)"
        rows.append([title, f"{limit:.0%}", f"{best:.1%}", "reached" if passed else "not reached"])
    return _table(["gate", "wanted", "best", ""], rows)


def _percent(found: tuple[float, float, float]) -> str:
    mean, low, high = found
    return f"{mean:.1%} ({low:.1%}-{high:.1%})"


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
