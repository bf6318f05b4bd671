"""Pages in prompts: found whole, in order, whatever the white space; never in part, short ones never within a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag import QVPIC, Page
from qvpic_rag.pipeline.recognise import KnownTexts, Recognised

A = Page(("Alpha is one.", "It is first."), "Alpha is one.\nIt is first.", "a", 0)
A2 = Page(("Alpha is one.",), "Alpha is one.", "short", 0)
B = Page(("Beta  follows.",), "Beta  follows.", "b", 0)
YES = Page(("yes",), "yes", "c", 0)
LONG = Page(("This page says one thing in eight words.",), "This page says one thing in eight words.", "d", 0)
KNOWN = KnownTexts([A2, A, B, YES, LONG])


@pytest.mark.parametrize(
    ("prompt", "text", "pages"),
    [
        ("Alpha is one.\nIt is first.", "[pages]", [A]),
        ("Context:\n---\nAlpha is one. It is\n first.\n---\nQuery: x", "Context:\n---\n[pages]\n---\nQuery: x", [A]),
        ("Alpha is one.\n\nBeta follows.\nEnd", "[pages]\nEnd", [A2, B]),
        ("Beta follows.\n\nAlpha is one.\nIt is first.", "[pages]", [B, A]),
        ("Beta follows.\nand\nAlpha is one.", "[pages]\nand\n[pages]", [B, A2]),
        ("Beta follows. Alpha is one.", "[pages]", [B, A2]),  # as where the parts of one text are joined
        ("Beta follows. Alpha is won.", "Beta follows. Alpha is won.", []),
        ("I say Beta follows.", "I say Beta follows.", []),
        ("yes it is", "yes it is", []),
        ("Is it?\nyes\n", "Is it?\n[pages]\n", [YES]),
        ("Alpha is one. It is last.", "Alpha is one. It is last.", []),
        (f"Context: {LONG.text} Answer:", "Context: [pages] Answer:", [LONG]),
        (f"Context: {A.text} Beta follows. Answer:", "Context: [pages] Answer:", [A, B]),  # long enough together
        (f"Context: {A.text}\nAnswer:", f"Context: {A.text}\nAnswer:", []),
        ("", "", []),
        ("\n \n", "\n \n", []),
    ],
)
def test_examples(prompt: str, text: str, pages: list[Page]) -> None:
    found = KNOWN.find(prompt)
    assert (found.text, list(found.pages)) == (text, pages)


WORDS = st.lists(st.sampled_from(["red", "green", "blue", "one", "two"]), min_size=1, max_size=6)
SPACE = st.sampled_from(["\n", "\n\n", " \n  "])


@given(st.lists(WORDS, min_size=1, max_size=5), st.data())
def test_every_page_between_other_lines_is_found(texts: list[list[str]], data: st.DataObject) -> None:
    pages = {tuple(words): Page((" ".join(words),), " ".join(words), "s", 0) for words in texts}
    chosen = data.draw(st.lists(st.sampled_from(sorted(pages)), max_size=6))
    prompt, expected = "Begin.", "Begin."
    for words in chosen:
        inner = data.draw(st.sampled_from([" ", "  ", "\t"]))
        before, after = data.draw(SPACE), data.draw(SPACE)
        prompt += f"{before}{inner.join(words)}{after}between"
        expected += f"{before}{Recognised.PLACEHOLDER}{after}between"
    found = KnownTexts(pages.values()).find(prompt)
    assert found.text == expected
    assert [page.text for page in found.pages] == [" ".join(words) for words in chosen]


@given(st.text(alphabet="ab \n", max_size=60))
def test_nothing_else_changes(prompt: str) -> None:
    found = KnownTexts([Page(("a b",), "a b", "s", 0)]).find(prompt)
    rest = found.text.split(Recognised.PLACEHOLDER)
    assert len(found.pages) >= len(rest) - 1
    at = 0
    for piece in rest:
        at = prompt.index(piece, at) + len(piece)
    assert KnownTexts([]).find(prompt).text == prompt


def test_through_the_engine(rag: QVPIC) -> None:
    pages = [stored.page for stored in rag.bank.pages()]
    prompt = "Context:\n" + "\n\n".join(page.text for page in pages[::-1]) + "\nWhat is the badge code of Omar Reyes?"
    found = rag.engine.known_texts().find(prompt)
    assert found.text == "Context:\n[pages]\nWhat is the badge code of Omar Reyes?"
    assert list(found.pages) == pages[::-1]
    answer = rag.ask(found.text, query="the badge code of Omar Reyes", context=found.pages, max_new_tokens=2)
    assert [page.page_id for page in answer.route.pages] == [page.digest for page in pages[::-1]]
    assert answer.route.compiled == ()
