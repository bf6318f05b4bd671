"""Collecting prose: what counts as English, how files are read, and that no passage is in two splits."""

from __future__ import annotations

import gzip
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.smolglyph import corpus

PROSE = (
    "The keys of a page are stored before they are rotated, so that the page can stand anywhere in a request. "
    "What is needed online is one rotation for each of the blocks that are linked."
)


def _sentences(start: int, count: int) -> list[str]:
    """Different paragraphs of English."""
    return [
        f"The report of day {number} says that it was cold in town {number * 7}, and that {number} people of the "
        f"village {number * 3} came to the hall to see what the {number * 11} others had to say about it."
        for number in range(start, start + count)
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("module.py", f'"""{PROSE}"""\nx = 1\n'),
        ("guide.rst", f"Title\n=====\n\n{PROSE}\n"),
        ("README", PROSE),
        ("page.html", f"<html><style>p {{color: red}}</style><p>{PROSE.replace('. ', '.&nbsp;')}</p><p>x</p></html>"),
        ("tool.1", f'.TH TOOL 1\n.SH NAME\n{PROSE}\n.PP\n.B "x"\n'),
        ("copyright", "\n".join(PROSE.split(" "))),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_files_of_each_kind_are_read(name: str, content: str, packed: bool, tmp_path: Path) -> None:
    file = tmp_path / (f"{name}.gz" if packed else name)
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    assert list(corpus.paragraphs(file)) == [PROSE]


def test_typographic_characters_become_plain_ones(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(PROSE.replace("The keys", "\u201cThe\u201d keys \u2014 it\u2019s"), encoding="utf-8")
    assert list(corpus.paragraphs(file)) == [PROSE.replace("The keys", '"The" keys - it\'s')]


def test_manual_pages_lose_their_markup(tmp_path: Path) -> None:
    file = tmp_path / "tool.8.gz"
    lines = [
        ".TH TOOL 8", ".SH DESCRIPTION", ".B tool", "writes the \\fIkeys\\fP of a page to a file, and with the option",
        ".BR \\-x", "it doesn\\(aqt rotate them, so that it can be used for all that are \\&made.", ".PP", "x",
    ]  # fmt: skip
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert list(corpus.paragraphs(file)) == [
        "tool writes the keys of a page to a file, and with the option -x it doesn't rotate them, so that it can be "
        "used for all that are made."
    ]


@pytest.mark.parametrize(
    "content",
    [
        "Too short to be of any use to anybody.",
        "x = [f(i, j) for i in range(10) for j in range(i)]; y = {k: v for k, v in zip(x, x)}; print(x, y, sep='; ')",
        PROSE.replace("page", "p\u00e4ge"),
        PROSE.replace("page", "<|image_pad|>"),
        "Lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore.",
    ],
)
def test_what_is_no_english_prose_is_left_out(content: str, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(content, encoding="utf-8")
    assert list(corpus.paragraphs(file)) == []


def test_long_paragraphs_are_cut_at_sentences(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    whole = " ".join(_sentences(0, 30))
    file.write_text(whole)
    found = list(corpus.paragraphs(file))
    assert len(found) > 2
    assert all(len(text) <= 1500 and text.endswith(".") for text in found)
    assert " ".join(found) == whole


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "b.png").write_text(PROSE)
    (tmp_path / "c.txt").mkdir()
    (tmp_path / "d.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "e.txt").write_text(PROSE)
    assert corpus.collect([tmp_path]) == [PROSE]


def test_texts_that_begin_alike_are_taken_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"{PROSE}\n\n{PROSE} And more of it.")
    (tmp_path / "b.txt").write_text(PROSE.upper())
    assert len(corpus.collect([tmp_path])) == 1


def test_every_folder_gets_its_share(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 5000)):
        (tmp_path / name).mkdir()
        for number in range(20):
            text = "\n\n".join(_sentences(start + number * 10, 10))
            (tmp_path / name / f"{number:02}.txt").write_text(text)
    found = corpus.collect([tmp_path / "a", tmp_path / "b"], enough=10_000)
    total = sum(map(len, found))
    assert 10_000 <= total < 15_000
    assert sum("day 5" in text for text in found) > len(found) / 3


def test_no_passage_is_in_two_splits(tmp_path: Path) -> None:
    """Also where a sentence is repeated in another paragraph."""
    texts = _sentences(0, 3000)
    texts += [f"{texts[number]} {texts[number * 2 + 1]}" for number in range(0, 1000, 7)]
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    found = corpus.load_corpus(path)

    def passages(split: str) -> set[tuple[str, ...]]:
        words = [re.findall(r"[a-z0-9]+", text.lower()) for text in found.of(split)]
        return {tuple(each[i : i + 10]) for each in words for i in range(len(each) - 9)}

    train, validation, test = map(passages, ("train", "validation", "test"))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(found.train) > 2000
    assert found.validation
    assert found.test


def test_a_run_keeps_its_text(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    file = tmp_path / "texts" / "a.txt"
    file.write_text("\n\n".join(_sentences(0, 1500)))
    path = tmp_path / "run" / "corpus.txt"
    first = corpus.load_corpus(path, [tmp_path / "texts"])
    file.unlink()
    said: list[str] = []
    again = corpus.load_corpus(path, [tmp_path / "texts"], said.append)
    assert said == [f"{path} is there already: its text is used, and no other is collected"]
    assert again == first
    assert again.digest == first.digest
    assert [each.name for each in path.parent.iterdir()] == ["corpus.txt"]


def test_too_little_text_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(PROSE)
    with pytest.raises(ConfigError, match="--corpus"):
        corpus.load_corpus(tmp_path / "run" / "corpus.txt", [tmp_path])


def test_what_cannot_be_a_corpus_leaves_nothing(tmp_path: Path) -> None:
    """No file that a second try would take for its text."""
    (tmp_path / "texts").mkdir()
    file = tmp_path / "texts" / "a.txt"
    path = tmp_path / "run" / "corpus.txt"
    for content in ("", "\n\n".join(f"{text} {PROSE}" for text in _sentences(0, 900))):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"too little English|share so many passages that none is left for"):
            corpus.load_corpus(path, [tmp_path / "texts"])
    for folder in (tmp_path / "nowhere", file):
        with pytest.raises(ConfigError, match=f"{folder} is no folder"):
            corpus.load_corpus(path, [folder])
    assert not path.parent.exists()


def test_a_few_packed_bytes_do_not_become_many(tmp_path: Path) -> None:
    text = "\n\n".join(_sentences(0, 9))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert len(list(corpus.paragraphs(tmp_path / "a.txt.gz"))) == 9
    bomb = gzip.compress(bytes(64 << 20), 1)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()) + bomb)
    tracemalloc.start()
    try:
        assert list(corpus.paragraphs(tmp_path / "b.txt.gz")) == []
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("a.html", "a < b "), ("a.html", "<p "), ("a.html", "<script "), ("a.html", "<style>"), ("a.html", "</script"),
        ("a.1", "\\m["),
    ],
)  # fmt: skip
def test_markup_that_never_ends_takes_no_long_time(name: str, piece: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{PROSE}\n\n{piece * (1_500_000 // len(piece))}")
    start = time.process_time()
    found = list(corpus.paragraphs(tmp_path / name))
    assert time.process_time() - start < 20  # a search that begins anew at each "<" takes hours
    assert found[:1] == [PROSE]


def test_an_absurd_entity_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(f"<p>{PROSE}</p>&#{'9' * 5000};")
    assert list(corpus.paragraphs(tmp_path / "a.html")) == []


def test_a_corpus_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"corpus\.txt"):
        corpus.load_corpus(tmp_path / "corpus.txt")
