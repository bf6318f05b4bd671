"""What comes from outside stays text in Markdown, in HTML and in plots."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from qvpic_rag.evaluation.document import Picture, Section, Table, as_html, as_markdown

NASTY = "<script>alert('x')</script> | `a` *b* [c](d) $e$ & \"f\"\n# g"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def _sections(text: str) -> list[Section]:
    table = Table([text, "n"], [[text, "1"]], caption=text)
    return [Section(text, [text, (text, text), table, Picture("1.png", text, b"data")], 3)]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_html_holds_no_markup_from_outside(text: str) -> None:
    plain, found = _Tags(), _Tags()
    plain.feed(as_html("", _sections("")))
    found.feed(as_html(text, _sections(text)))
    assert [tag for tag in found.tags if tag != "caption"] == [tag for tag in plain.tags if tag != "caption"]
    assert found.text.count(text) >= 6 or not text


def test_html_of_markup() -> None:
    found = as_html(NASTY, _sections(NASTY))
    assert "<script" not in found
    assert "default-src 'none'" in found
    assert "&lt;script&gt;" in found
    assert 'src="data:image/png;base64,ZGF0YQ=="' in found


def test_markdown() -> None:
    assert as_markdown("T", [Section("S", ["x"]), *_sections("a_b")], "plots") == (
        "# T\n\n## S\n\nx\n\n### a\\_b\n\na\\_b\n\n- a\\_b\n- a\\_b\n\na\\_b\n\n"
        "| a\\_b | n |\n| :--- | ---: |\n| a\\_b | 1 |\n\n![a\\_b](plots/1.png)\n"
    )


def test_markdown_of_markup() -> None:
    found = as_markdown(NASTY, _sections(NASTY), "plots")
    assert "<script" not in found.replace("\\<script", "")
    [row] = [line for line in found.splitlines() if line.endswith("| 1 |")]
    assert row.replace("\\|", "").count("|") == 3
    assert not any(line.startswith("# g") for line in found.splitlines())
