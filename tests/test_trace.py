"""The trace page: complete in one file, safe whatever a document is called, and true to the answer."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from PIL import Image

from qvpic_rag.records import Answer, Route, RoutedPage, Timing, Usage
from qvpic_rag.trace import trace_html

VOID = {"meta", "img", "br"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onclick='alert(1)",
    "</style></title><b>",
    "a&lt;b &amp; c",
    "دليل/ملف عربي.txt",
    "zoë 🔑\n\t.txt",
    "http://example.com/x.png",
]


class Parsed(HTMLParser):
    """Elements with their attributes, and the text; refuses tags that do not balance."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def an_answer(sources: list[str], **changes: object) -> Answer:
    pages = tuple(
        RoutedPage(f"id{i}", source, i, 120 if i < 2 else 72, 0.9 - i / 20, i, i < 2, 82 if i < 2 else 32)
        for i, source in enumerate(sources)
    )
    timing = Timing(8.3, 0.9, 0.05, 2.1, 2.5, 9.15, 23.0, 12.0, 35.0)
    return replace(Answer("TB-209", "stop", Route(pages), timing, Usage(460, 39, 7, 2_400_000)), **changes)


def pictures(answer: Answer) -> dict[str, Image.Image]:
    return {p.page_id: Image.new("RGB", (p.dpi, 10 + p.number), "white") for p in answer.route.pages}


def parsed(answer: Answer, question: str = "Why?") -> Parsed:
    return Parsed(trace_html(question, answer, pictures(answer)))


@pytest.mark.parametrize("count", [0, 1, 16])
def test_pages_are_shown_as_pictures_in_request_order(count: int) -> None:
    answer = an_answer([f"{i}.txt" for i in range(count)])
    page = parsed(answer)
    images = page.all("img")
    assert len(images) == len(page.all("figure")) == count
    for routed, image in zip(answer.route.pages, images, strict=True):
        source = image["src"] or ""
        assert source.startswith("data:image/png;base64,")
        with Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))) as picture:
            assert picture.size == (routed.dpi, 10 + routed.number)
        assert f"{routed.number + 1}. {routed.source}, page {routed.number + 1}" in page.text
        assert f"score {routed.score:.3f}, rank {routed.rank + 1}, {routed.tokens} tokens" in page.text
    assert [figure["class"] for figure in page.all("figure")] == ["high", "high", *["low"] * 14][:count]
    assert ("Pages in request order" in page.text) == (count > 0)


def test_nothing_is_loaded_from_elsewhere() -> None:
    answer = an_answer(["a.txt", "b.txt", "c.txt"])
    text = trace_html("Why?", answer, pictures(answer))
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert "@import" not in text
    page = Parsed(text)
    assert {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "base", "form"} == set()
    assert {name for _, attributes in page.elements for name in attributes} & {"href", "srcset", "action"} == set()
    policy = next(meta["content"] for meta in page.all("meta") if "http-equiv" in meta)
    assert (policy or "").startswith("default-src 'none'")


@pytest.mark.parametrize("words", HOSTILE)
def test_words_from_outside_stay_text(words: str) -> None:
    answer = an_answer([words] * 3, text=words, reasoning=words, finish_reason=words)
    answer = replace(answer, route=replace(answer.route, note=words))
    page = parsed(answer, words)
    plain = parsed(replace(an_answer(["a"] * 3, text="a", reasoning="a"), route=replace(answer.route, note="a")))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert [set(attributes) for _, attributes in page.elements] == [set(attributes) for _, attributes in plain.elements]
    assert page.text.count(words) == 1 + 1 + 1 + 1 + 1 + 1 + 3  # title, heading, end, answer, reasoning, note, pages


def test_the_bar_is_the_time_to_first_token() -> None:
    for compiled in (None, 55.0):
        answer = an_answer(["a.txt"])
        answer = replace(answer, timing=replace(answer.timing, compile=compiled))
        page = parsed(answer)
        widths = [
            float(match[1])
            for span in page.all("span")
            if (match := re.match(r"width:([\d.]+)%", span.get("style") or ""))
        ]
        assert len(widths) == (6 if compiled is None else 7)
        assert sum(widths) == pytest.approx(100, abs=0.05)
        assert "Time to first token 23.0 ms, whole answer 35.0 ms" in page.text
        assert ("compile 55.00 ms" in page.text) == (compiled is not None)


def test_no_times_at_all() -> None:
    assert "Time to first token 0.0 ms" in parsed(an_answer([], timing=Timing())).text


def test_what_is_unusual_is_said() -> None:
    answer = an_answer(["a.txt"], text="", reasoning="Let me see.")
    page = parsed(replace(answer, route=replace(answer.route, note="Odd.", dropped=("x", "y"), compiled=("z",))))
    for words in ("(empty answer)", "Let me see.", "Odd.", "2 page(s) of lowest rank", "1 page(s) were missing"):
        assert words in page.text
    usual = parsed(an_answer(["a.txt"]))
    assert usual.all("details") == []
    assert all(paragraph.get("class") != "note" for paragraph in usual.all("p"))


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 bytes"), (999, "999 bytes"), (2_400_000, "2.4 MB"), (3 * 10**12, "3000.0 GB")]
)
def test_sizes(count: int, words: str) -> None:
    assert f"({words})" in parsed(an_answer([], usage=Usage(1, 2, 3, count))).text
