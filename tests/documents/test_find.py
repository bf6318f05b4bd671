"""Files, folders, patterns, and paths that lead nowhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.documents import SUFFIXES, Failure, read_documents
from qvpic_rag.records import Document
from tests.documents.reading import failure, left_out, read, sources, write


def test_a_folder_is_walked_in_name_order_without_hidden_and_unsupported_files() -> None:
    for path in (
        "h/b.txt",
        "h/a/z.md",
        "h/a/y.HTML",
        "h/.git/x.txt",
        "h/.x.txt",
        "h/c.png",
        "h/README",
        "h/d.json/e.csv",
    ):
        write(path, "<p>t" if path.endswith("HTML") else "a,b")
    expected = ["h/a/y.HTML", "h/a/z.md", "h/b.txt", "h/d.json/e.csv"]
    for spelling in ("h", "h/", "./h", "h//", "././h/"):
        assert sources(spelling) == expected
    assert sources(".") == expected


def test_sources_are_spelled_as_given(here: Path) -> None:
    write("h/a.txt")
    assert sources("./h/a.txt") == ["h/a.txt"]
    assert sources(str(here / "h")) == [(here / "h" / "a.txt").as_posix()]
    (here / "other").mkdir()
    os.chdir("other")
    assert sources("../h/") == ["../h/a.txt"]
    assert sources("../h/*.txt") == ["../h/a.txt"]


def test_a_file_reached_twice_is_read_once() -> None:
    write("h/a.txt")
    write("h/b.txt")
    Path("link.txt").symlink_to("h/a.txt")
    assert sources("h/b.txt", "h", "h/*.txt", "./h/a.txt", "link.txt") == ["h/b.txt", "h/a.txt"]
    assert sources("no.txt", "./no.txt") == ["(no.txt)"]


def test_a_single_path_need_not_be_a_list() -> None:
    write("abc.txt")
    assert [item.source for item in read_documents("abc.txt")] == ["abc.txt"]
    assert [item.source for item in read_documents(Path("abc.txt"))] == ["abc.txt"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("docs/*.md", ["docs/a.md"]),
        ("docs/**/*.md", ["docs/a.md", "docs/deep/er/c.md", "docs/deep/b.md"]),
        ("**/b.md", ["docs/deep/b.md"]),
        ("docs/**", ["docs/a.md", "docs/deep/er/c.md", "docs/deep/b.md", "docs/z.txt"]),
        ("docs/[az].*", ["docs/a.md", "docs/z.txt"]),
        ("d*/de*", ["docs/deep/b.md", "docs/deep/er/c.md"]),
        ("docs/**/er/*", ["docs/deep/er/c.md"]),
        ("docs/.*.md", ["docs/.hidden.md"]),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    for path in ("docs/a.md", "docs/z.txt", "docs/deep/b.md", "docs/deep/er/c.md", "docs/p.png", "docs/.hidden.md"):
        write(path)
    assert sorted(sources(pattern)) == sorted(expected)
    assert sources(pattern) == sources(pattern)
    absolute = f"{Path.cwd().as_posix()}/{pattern}"
    assert sorted(sources(absolute)) == sorted(f"{Path.cwd().as_posix()}/{path}" for path in expected)


def test_files_without_a_reader_are_named() -> None:
    for path in ("docs/a.md", "docs/p.png", "docs/deep/c.docx", "docs/.hidden.png"):
        write(path)
    assert left_out("docs") == ["docs/deep/c.docx", "docs/p.png"]
    assert left_out("docs/*") == ["docs/deep/c.docx", "docs/p.png"]
    assert left_out("docs/*.md", "docs/p*") == ["docs/p.png"]
    assert "no file that can be read" in failure("docs/p*")


def test_a_file_whose_name_looks_like_a_pattern_is_that_file() -> None:
    write("a[1].txt", "brackets")
    assert read("a[1].txt") == "brackets"


def test_loops_of_links_end() -> None:
    write("h/a.txt")
    Path("h/self").symlink_to(".")
    Path("h/up").symlink_to("..")
    Path("h/self2").symlink_to("../h")
    assert sources("h") == ["h/a.txt"]
    assert sources("h/**/*.txt") == ["h/a.txt"]
    assert sources("**") == ["h/a.txt"]


def test_links_to_nowhere_are_skipped_in_folders_and_reported_when_named() -> None:
    write("h/a.txt")
    Path("h/gone.txt").symlink_to("nothing")
    assert sources("h") == ["h/a.txt"]
    assert failure("h/gone.txt") == "'h/gone.txt' cannot be read: no such file or directory."


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.txt", "'no.txt' does not exist; check the path."),
        ("", "'' does not exist; check the path."),
        ("*.md", "The pattern '*.md' matches no file that can be read; supported are .txt, .md"),
        ("empty/", "The folder 'empty' holds no file that can be read; supported are .txt, .md"),
        ("a\0b", "does not exist"),
        ("x" * 5000, "cannot be read: file name too long"),
    ],
)
def test_paths_that_lead_nowhere(path: str, message: str) -> None:
    Path("empty").mkdir()
    write("p.png", b"\x89PNG\0")
    assert message in failure(path)


def test_an_unsupported_file_is_reported_when_named() -> None:
    write("p.png", b"\x89PNG\r\n\x1a\n\0\0")
    write("LICENSE", "text")
    supported = ", ".join(SUFFIXES)
    assert failure("p.png") == f"'p.png' is a binary file of type .png; convert it to one of {supported}."
    assert failure("LICENSE") == f"'LICENSE' is a file without an ending; convert it to one of {supported}."
    os.mkfifo("pipe.txt")
    assert "neither a file nor a folder" in failure("pipe.txt")
    assert sources("p.png", "LICENSE", ".")[-1] == "(.)"


def test_no_permission_is_one_sentence_and_the_rest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("h/a.txt", "h/locked/b.txt", "h/z.txt"):
        write(path)
    scandir, read_bytes = os.scandir, Path.read_bytes

    def guarded_scandir(folder: Any) -> Any:
        if str(folder).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    def guarded_read(path: Path) -> bytes:
        if path.name == "a.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(os, "scandir", guarded_scandir)
    monkeypatch.setattr(Path, "read_bytes", guarded_read)
    found = list(read_documents(["h"]))
    assert [item.source for item in found] == ["h/a.txt", "h/locked", "h/z.txt"]
    messages = [str(item.error) for item in found if isinstance(item, Failure)]
    assert messages == [
        "'h/a.txt' cannot be read: permission denied; make it readable.",
        "The folder 'h/locked' cannot be read: permission denied; make it readable.",
    ]
    assert sources("h/*/*.txt") == ["(h/locked)"]


def test_files_are_read_one_at_a_time() -> None:
    for name in "abc":
        write(f"h/{name}.txt", name)
    found = read_documents(["h"])
    assert next(found).source == "h/a.txt"
    Path("h/b.txt").write_text("changed meanwhile")
    assert next(found) == Document("changed meanwhile", "h/b.txt")
