"""Archives that are cut off, altered or made to do harm: one sentence, and nothing of them is visible afterwards."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank, import_archive
from qvpic_rag.bank.archive_read import ArchiveReader
from qvpic_rag.errors import ArchiveError, BankMismatchError
from tests.bank import archives, samples
from tests.bank.archives import Parts

HEAD, PAGES, DOCUMENTS = archives.NAMES


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound archive. Read it, never change it."""
    return archives.sample_archive(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank that nothing is ever stored in."""
    folder = tmp_path_factory.mktemp("there") / "bank"
    with Bank.create(folder, samples.recipe()) as bank:
        samples.put(bank, "own.txt", ["own"])
    return folder


@pytest.fixture
def refused(there: Path, tmp_path: Path) -> Callable[..., str]:
    """``refused(archive)``: its sentence, after nothing was found to have changed."""

    def seen() -> list[tuple[Path, int]]:
        return sorted((path, path.stat().st_size) for path in there.rglob("*"))

    def refused(archive: Path) -> str:
        before = seen()
        with pytest.raises((ArchiveError, BankMismatchError)):  # the recipe is compared before all is read
            import_archive(archive, there)
        with pytest.raises(ArchiveError) as caught:
            import_archive(archive, tmp_path / "new")
        assert seen() == before
        assert not (tmp_path / "new").exists()
        message = str(caught.value)
        assert message.startswith(f"The archive {str(archive)!r} ")
        assert "\n" not in message
        assert message.endswith(".")
        return message

    return refused


def test_the_helper_writes_what_an_export_does(sample: Path, tmp_path: Path) -> None:
    assert Parts.of(sample).write(tmp_path / "again.tar").read_bytes() == sample.read_bytes()


def test_cut_off_anywhere(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    raw = sample.read_bytes()
    dice = random.Random(3)
    places = {*range(0, len(raw), 512), *(dice.randrange(len(raw)) for _ in range(100)), len(raw) - 1}
    for place in sorted(places):
        (tmp_path / "x.tar").write_bytes(raw[:place])
        assert "is damaged or none, it " in refused(tmp_path / "x.tar"), place


def test_any_flipped_bit(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    raw = bytearray(sample.read_bytes())
    dice = random.Random(4)
    for place in (dice.randrange(len(raw)) for _ in range(500)):
        bit = 1 << dice.randrange(8)
        raw[place] ^= bit
        (tmp_path / "x.tar").write_bytes(raw)
        refused(tmp_path / "x.tar")
        raw[place] ^= bit
    (tmp_path / "x.tar").write_bytes(raw)
    assert import_archive(tmp_path / "x.tar", tmp_path / "new").stored == 6


def test_pieces_elsewhere(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    """Sectors swapped, doubled, left out, and something after the end."""
    raw = sample.read_bytes()
    sectors = [raw[at : at + 512] for at in range(0, len(raw), 512)]
    dice = random.Random(5)
    for _ in range(50):
        one, two = dice.sample(range(len(sectors)), 2)
        swapped = list(sectors)
        swapped[one], swapped[two] = sectors[two], sectors[one]
        others = [*sectors[:one], *sectors[one + 1 :]], [*sectors[:one], sectors[one], *sectors[one:]]
        for altered in (swapped, *others):
            (tmp_path / "x.tar").write_bytes(b"".join(altered))
            if altered != sectors:
                refused(tmp_path / "x.tar")
    for more in (b"\0", b"x", bytes(512), raw):
        (tmp_path / "x.tar").write_bytes(raw + more)
        assert "does not end as an archive does" in refused(tmp_path / "x.tar")


@pytest.mark.parametrize("content", [b"", b"x", b"\x1f\x8b\x08" + bytes(2000), bytes(10240), b"PK\x03\x04" * 500])
def test_files_that_are_none(tmp_path: Path, refused: Callable[..., str], content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    assert "is damaged or none" in refused(tmp_path / "x.tar")


def test_what_is_no_file(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "cannot be read (No such file or directory): give a file" in refused(tmp_path / "none.tar")
    (tmp_path / "folder.tar").mkdir()
    refused(tmp_path / "folder.tar")
    os.mkfifo(tmp_path / "pipe.tar")  # and nobody is waited for
    assert "it is no file" in refused(tmp_path / "pipe.tar")


def _renamed(parts: Parts, name: str) -> Parts:
    first = parts.blocks()[0]
    return Parts([(name if each == first else each, content) for each, content in parts.members])


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "blocks/../../x.json", "blocks/", "a\0b"])
def test_names_that_are_paths(sample: Path, tmp_path: Path, refused: Callable[..., str], name: str) -> None:
    message = refused(_renamed(Parts.of(sample), name).write(tmp_path / "x.tar"))
    assert "does not stand what should, the member blocks/" in message


@pytest.mark.parametrize(
    "values",
    [
        {"type": b"2", "linkname": "/etc/passwd"},
        {"type": b"1", "linkname": "pages.jsonl"},
        {"linkname": "/etc/passwd"},
        *({"type": kind} for kind in (b"3", b"4", b"5", b"6", b"S", b"L", b"K", b"x", b"g", b"\0", b"7")),
        {"mode": 0o4755},
        {"uid": 1},
        {"mtime": 1},
        {"uname": "root"},
        {"gnu": True},
        {"size": 8**11 - 1},
        {"size": 8**11, "gnu": True},
        {"size": 0},
        {"size": 1},
        {"size": 512},
    ],
    ids=str,
)
@pytest.mark.parametrize("member", [0, 1, 2, 3, -1])
def test_members_that_are_no_plain_files(
    sample: Path, tmp_path: Path, refused: Callable[..., str], values: dict[str, object], member: int
) -> None:
    parts = Parts.of(sample)
    name = [*(name for name, _ in parts.members), "end.json"][member]
    parts.infos[name] = values
    refused(parts.write(tmp_path / "x.tar"))


def test_members_twice_in_another_order_or_left_out(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    parts = Parts.of(sample)
    members = parts.members
    for at in range(len(members)):
        doubled = [*members[: at + 1], members[at], *members[at + 1 :]]
        swapped = [*members[:at], *members[at + 1 : at + 2], members[at], *members[at + 2 :]]
        missing = [*members[:at], *members[at + 1 :]]
        for altered in (doubled, missing, *([swapped] if at + 1 < len(members) else [])):
            refused(Parts(altered).write(tmp_path / "x.tar"))
    refused(Parts([*members, ("notes.txt", b"hello")]).write(tmp_path / "x.tar"))


def test_blocks_that_are_not_what_their_name_says(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    parts = Parts.of(sample)
    first, second, *_ = parts.blocks()
    swapped = parts.set(first, parts.get(second))
    assert "holds another block, its dpi differs" in refused(swapped.write(tmp_path / "x.tar"))
    for content in (b"", b"x" * 100, parts.get(first)[:-1], parts.get(first) + b"\0"):
        assert f"in the block {first}" in refused(parts.set(first, content).write(tmp_path / "x.tar"))
    head = archives.line({})
    assert "in the block" in refused(parts.set(first, len(head).to_bytes(8, "little") + head).write(tmp_path / "x.tar"))


@pytest.mark.parametrize(
    "values",
    [
        {"format": "tar"},
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"namespace": ""},
        {"namespace": 7},
        {"namespace": "\udcff"},
        {"namespace": "other"},
        {"documents": 3},
        {"documents": "2"},
        {"pages": 2},
        {"pages": -1},
        {"pages": True},
        {"blocks": 7},
        {"blocks": 6.0},
        {"more": 1},
        {"recipe": None},
        {"recipe": []},
        {"recipe": {"dpis": [72, 120]}},
    ],
    ids=str,
)
def test_a_manifest_that_is_not_true(
    sample: Path, tmp_path: Path, refused: Callable[..., str], values: dict[str, object]
) -> None:
    refused(Parts.of(sample).change(HEAD, **values).write(tmp_path / "x.tar"))


@pytest.mark.parametrize(
    "values",
    [
        {"dpis": [0, 72]},
        {"dpis": [72, 72]},
        {"dpis": [72]},
        {"dpis": ["72", "120"]},
        {"dimension": 0},
        {"dimension": -8},
        {"dimension": 8.0},
        {"dimension": 10**30},
        {"system_prompt": {"a": 1}},
        {"profile": "glyph"},
        {"fingerprint": None},
        {"more": 1},
    ],
    ids=str,
)
def test_a_recipe_that_is_none(sample: Path, tmp_path: Path, values: dict[str, object]) -> None:
    parts = Parts.of(sample)
    parts = parts.change(HEAD, recipe={**parts.json(HEAD)["recipe"], **values})
    with pytest.raises(ArchiveError):
        import_archive(parts.write(tmp_path / "x.tar"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "values",
    [
        {"embedding": archives.embedding([NAN] * 8)},
        {"embedding": archives.embedding([INFINITY] + [0] * 7)},
        {"embedding": archives.embedding([0] * 7)},
        {"embedding": archives.embedding([0] * 9)},
        {"embedding": archives.embedding([0] * 8)[:-1] + "\n"},
        {"embedding": "é"},
        {"embedding": ""},
        {"embedding": [0.0] * 8},
        {"lines": "one"},
        {"lines": [1]},
        {"lines": ["another"]},
        {"lines": None},
        {"text": None},
        {"text": {"a": 1}},
        {"more": 1},
    ],
    ids=lambda values: str(values)[:40],
)
def test_pages_that_are_none(
    sample: Path, tmp_path: Path, refused: Callable[..., str], values: dict[str, object]
) -> None:
    message = refused(Parts.of(sample).change(PAGES, 1, **values).write(tmp_path / "x.tar"))
    assert "entry 2 of pages.jsonl" in message or "the member blocks/" in message


@pytest.mark.parametrize(
    "values",
    [
        {"source": None},
        {"source": "a.txt"},
        {"digest": 7},
        {"digest": "\ud800"},
        {"metadata": []},
        {"metadata": None},
        {"metadata": {"n": NAN}},
        {"pages": [0, 3]},
        {"pages": [1, -1]},
        {"pages": [True]},
        {"pages": [1.0]},
        {"pages": [10**40]},
        {"pages": "01"},
        {"pages": [1, 0]},
        {"more": 1},
    ],
    ids=str,
)
def test_documents_that_are_none(
    sample: Path, tmp_path: Path, refused: Callable[..., str], values: dict[str, object]
) -> None:
    refused(Parts.of(sample).change(DOCUMENTS, 1, **values).write(tmp_path / "x.tar"))


def test_a_page_twice_or_of_no_document(sample: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    parts = Parts.of(sample)
    twice = parts.get(PAGES) + parts.get(PAGES).splitlines(keepends=True)[0]
    assert "it is there twice" in refused(parts.set(PAGES, twice).write(tmp_path / "x.tar"))
    alone = parts.set(DOCUMENTS, parts.get(DOCUMENTS).splitlines(keepends=True)[0]).change(HEAD, documents=1)
    assert "not all of its pages belong" in refused(alone.write(tmp_path / "x.tar"))
    nothing = parts.set(PAGES, b"").set(DOCUMENTS, b"").change(HEAD, documents=0, pages=0, blocks=0)
    refused(Parts([each for each in nothing.members if "blocks/" not in each[0]]).write(tmp_path / "x.tar"))


OTHER_SPELLINGS: list[Callable[[bytes], bytes]] = [
    lambda line: line[:-1],
    lambda line: b"\n" + line,
    lambda line: line + b"\n",
    lambda line: b" " + line,
    lambda line: line.replace(b":", b": ", 1),
    lambda line: b"\xef\xbb\xbf" + line,
    lambda line: line.replace(b"{", b'{"source":"x","text":"x",', 1),
    lambda line: json.dumps(dict(reversed(json.loads(line).items())), separators=(",", ":")).encode() + b"\n",
    lambda line: b"[" * 200_000 + b"\n",
    lambda line: b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"\n",
    lambda line: b'{"n":' + b"9" * 100_000 + b"}\n",
    lambda line: b"null\n",
    lambda line: b'"\\ud83d\n',
    lambda line: b"\xff\xfe\n",
    lambda line: b"\0\n",
    lambda line: b"",
]


@pytest.mark.parametrize("spelled", range(len(OTHER_SPELLINGS)))
@pytest.mark.parametrize("name", [HEAD, PAGES, DOCUMENTS])
def test_other_spellings(sample: Path, tmp_path: Path, refused: Callable[..., str], name: str, spelled: int) -> None:
    """Also such that a JSON reader would take for the same, and nesting that would exhaust its stack."""
    parts = Parts.of(sample)
    first, rest = parts.get(name).split(b"\n", 1)
    altered = OTHER_SPELLINGS[spelled](first + b"\n") + rest
    refused(parts.set(name, altered).write(tmp_path / "x.tar"))


def test_a_long_line_is_not_read_into_memory(sample: Path, tmp_path: Path) -> None:
    """A sparse file declares and holds a gigabyte."""
    for name in archives.NAMES:
        raw, header = sample.read_bytes(), archives.header(name, 1 << 30)
        at = raw.index(name.encode().ljust(100, b"\0"))
        with (tmp_path / "x.tar").open("wb") as file:
            file.write(raw[:at] + header)
            file.truncate(1 << 31)
        tracemalloc.start()
        try:
            with pytest.raises(ArchiveError):
                import_archive(tmp_path / "x.tar", tmp_path / "new")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100e6
    assert not (tmp_path / "new").exists()


def test_a_file_that_changes_after_it_was_checked(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = bytearray(sample.read_bytes())
    original = ArchiveReader.check
    parts = Parts.of(sample)
    wanted = {name: raw.index(content) + len(content) - 3 for name, content in parts.members[1:4]}
    for name, place in wanted.items():
        (tmp_path / "x.tar").write_bytes(raw)

        def altered(reader: ArchiveReader, progress: Callable[[int], None], place: int = place) -> None:
            original(reader, progress)
            with (tmp_path / "x.tar").open("r+b") as file:
                file.seek(place)
                file.write(b"\xee\xee")

        with monkeypatch.context() as patch:
            patch.setattr(ArchiveReader, "check", altered)
            with pytest.raises(ArchiveError, match="it changed while it was read"):
                import_archive(tmp_path / "x.tar", tmp_path / name)
        with Bank.open(tmp_path / name) as bank:
            assert [document.source for document in bank.documents()] in ([], ["a.txt"])
            assert bank.verify(grace_s=0) == []
