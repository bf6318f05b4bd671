"""English prose to practise reading on: documentation that is on the machine, cleaned, split, and kept with the run.

Sources are Python's own documentation strings and those of installed packages, ``/usr/share/doc``, manual pages and
licences. They may be trained on; none of it is shipped. What was found is written to the run's folder, so that a run
continued on another machine reads the same text.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import os
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qvpic_rag.errors import ConfigError
from qvpic_rag.reader.words import SPLITS, check_split

__all__ = ["Corpus", "collect", "default_folders", "load_corpus", "paragraphs"]

_LARGEST = 2 << 20  # bytes of a file; larger ones are data
_ENOUGH = 24 << 20  # characters collected, after which nothing more is read
_LEAST = 200_000  # characters of a corpus that teaches anything
_SHORTEST, _LONGEST = 80, 1500  # characters of a paragraph
_SHARES = (0.94, 0.02, 0.04)  # of the splits
_SHINGLE = 10  # words that make two texts the same passage
_COMMON = frozenset(
    {
        "the", "of", "and", "to", "a", "in", "is", "that", "it", "for", "was", "on", "as", "with", "be", "by", "this",
        "are", "or", "an", "from", "at", "not", "have", "you", "which", "can", "will", "if", "has", "but", "they",
        "all", "when", "used", "any", "may", "one",
    }
)  # fmt: skip
_PLAIN = str.maketrans(
    {
        "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ", "\u2026": "...",
        "\u00a0": " ", "\u2010": "-", "\u2011": "-", "\u2022": "*",
    }
)  # fmt: skip
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
# No search for an end begins anew at every "<" that has none: a tag ends before the next one, a script with the text.
_TAG = re.compile(r"<(script|style)\b.*?(?:</\1>|\Z)|<[^<>]+>", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"</?(p|div|li|ul|ol|h\d|tr|td|th|table|pre|br|dd|dt|dl|section)\b[^<>]*>", re.IGNORECASE)
_ROFF = re.compile(r"\\f\[?[A-Z]+\]?|\\f.|\\s[-+]?\d|\\[&|^]|\\\*\(..|\\m\[[^\[\]]*\]")
_NAMED = {
    "aq": "'",
    "cq": "'",
    "oq": "'",
    "dq": '"',
    "lq": '"',
    "rq": '"',
    "em": " - ",
    "en": "-",
    "bu": "*",
    "co": "(c)",
}
_MANUAL = re.compile(r"\.[1-8][a-z]*$")
_SENTENCE = re.compile(r"(?<=[.!?;:]) ")
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Corpus:
    """Paragraphs of printable ASCII, one line each, by split. No passage of one split stands in another."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    def of(self, split: str) -> tuple[str, ...]:
        """The paragraphs of ``train``, ``validation`` or ``test``."""
        check_split(split)
        found: tuple[str, ...] = getattr(self, split)
        return found

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of everything, in order."""
        text = "\f".join("\n".join(self.of(split)) for split in SPLITS)
        return hashlib.sha256(text.encode("ascii")).hexdigest()


def default_folders() -> list[Path]:
    """Where documentation usually is, as far as it is there."""
    paths = sysconfig.get_paths()
    places = [
        paths["stdlib"], paths["purelib"], "/usr/share/doc", "/usr/share/man", "/usr/share/common-licenses",
        "/usr/share/perl", "/usr/lib/python3", "/usr/local/share/doc", "/usr/local/share/man",
    ]  # fmt: skip
    return [path for path in dict.fromkeys(map(Path, places)) if path.is_dir()]


def load_corpus(
    path: Path, folders: Sequence[Path] = (), progress: Callable[[str], object] = lambda text: None
) -> Corpus:
    """The corpus in a file of :func:`collect`'s paragraphs; where there is none, one is collected and written.

    Parameters
    ----------
    path : Path
        One paragraph per line.
    folders : Sequence[Path]
        Where to look for text if there is no file yet; by default :func:`default_folders`.

    Raises
    ------
    ConfigError
        There is too little text, all of it is alike, a folder is none, or the file cannot be read or written.
    """
    try:
        if path.exists():
            if folders:
                progress(f"{path} is there already: its text is used, and no other is collected")
            return _checked(path.read_text(encoding="ascii").splitlines(), str(path))
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"{folder} is no folder; name a folder of text files with --corpus.")
        progress("collecting English text on this machine ...")
        places = folders or default_folders()
        lines = collect(places)
        found = _checked(lines, ", ".join(map(str, places)))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        part.write_text("".join(f"{each}\n" for each in lines), encoding="ascii")
        part.replace(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The corpus {path} cannot be used ({error}); name another run folder.") from error
    return found


def _checked(lines: Sequence[str], where: str) -> Corpus:
    """The paragraphs by split, if they are enough to train and to measure on."""
    advice = "train a new run with --corpus and a folder of other text files, or measure with --run"
    if (total := sum(map(len, lines))) < _LEAST:
        raise ConfigError(
            f"There is too little English text ({total} characters in {where}, at least {_LEAST} are needed); {advice}."
        )
    found = _split(lines)
    if empty := [split for split in SPLITS if not found.of(split)]:
        raise ConfigError(
            f"The paragraphs in {where} share so many passages that none is left for {' and '.join(empty)}; {advice}."
        )
    return found


def collect(folders: Sequence[Path], enough: int = _ENOUGH) -> list[str]:
    """Paragraphs of readable files below the folders, each once, until there are ``enough`` characters.

    Files come in an order that their names alone decide, but not in alphabetical order: what is read should be of many
    kinds.
    """
    found: list[str] = []
    heads: set[str] = set()
    total = 0
    # Every folder gets its share, so that one large collection does not push out the others.
    for folder in folders:
        until = total + max(enough - total, 0) // max(1, len(folders) - folders.index(folder))
        for file in sorted(folder.rglob("*"), key=_shuffled):
            if total >= until:
                break
            for text in paragraphs(file):
                # Licences and notices are repeated with other names in them: one that begins alike is enough.
                head = " ".join(_WORD.findall(text.lower())[:10])
                if head not in heads:
                    heads.add(head)
                    found.append(text)
                    total += len(text)
    return found


def _shuffled(file: Path) -> bytes:
    return hashlib.sha256(os.fsencode(file)).digest()


def paragraphs(file: Path) -> Iterator[str]:
    """English paragraphs of a file, by the kind that its name says; nothing from a file that is none of them."""
    name = file.name.lower().removesuffix(".gz")
    read = _reader(name)
    if read is None:
        return
    try:
        if not file.is_file() or file.is_symlink() or file.stat().st_size > _LARGEST:
            return
        with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as stream:
            content = stream.read(_LARGEST + 1)  # a few packed bytes may become gigabytes
        if len(content) > _LARGEST:
            return
        blocks = read(content.decode("utf-8", "replace"))
    except (OSError, EOFError, zlib.error, ValueError):  # ValueError: an HTML entity with thousands of digits
        return  # unreadable or damaged: there is other text
    for block in blocks:
        for part in re.split(r"\n[ \t]*\n", block):
            yield from _pieces(re.sub(r"\s+", " ", part.translate(_PLAIN)).strip())


def _reader(name: str) -> Callable[[str], Iterable[str]] | None:
    suffix = Path(name).suffix
    if suffix == ".py":
        return _DOCSTRING.findall
    if suffix in (".html", ".htm"):
        return lambda text: [html.unescape(_TAG.sub(" ", _BLOCK.sub("\n\n", text)))]
    if _MANUAL.search(name):
        return lambda text: [_from_roff(text)]
    if suffix in (".txt", ".rst", ".md", ".pod", "") or name.startswith(("readme", "license", "copying", "news")):
        return lambda text: [text]
    return None


def _from_roff(text: str) -> str:
    """The running text of a manual page; requests end paragraphs."""
    lines = []
    for line in text.splitlines():
        if line.startswith((".B", ".I", ".R")) and line[2:3] in " IRB":  # fonts stand within sentences
            line = line.split(" ", 1)[-1].replace('"', "")
        line = re.sub(r"\\\((..)", lambda match: _NAMED.get(match[1], ""), _ROFF.sub("", line).replace("\\-", "-"))
        lines.append("" if line.startswith((".", "'")) else line.replace("\\e", "\\"))
    return "\n".join(lines)


def _pieces(text: str) -> Iterator[str]:
    """A paragraph whole, or a long one in stretches of sentences; what is no English prose is left out."""
    while len(text) > _LONGEST:
        cut = max((each.end() for each in _SENTENCE.finditer(text, 0, _LONGEST)), default=0)
        if not cut:
            return
        if _is_prose(text[:cut].strip()):
            yield text[:cut].strip()
        text = text[cut:]
    if _is_prose(text):
        yield text


def _is_prose(text: str) -> bool:
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or "<|" in text:
        return False
    words = text.lower().split()
    letters = sum(character.isalpha() or character == " " for character in text)
    common = sum(word.strip(".,;:()") in _COMMON for word in words)
    return len(words) >= 12 and letters >= 0.85 * len(text) and common >= 0.2 * len(words)


def _split(lines: Iterable[str]) -> Corpus:
    """By a hash of each paragraph; what is in more than one split is left to the smaller one."""
    parts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for line in lines:
        point = int.from_bytes(hashlib.sha256(line.encode("ascii")).digest()[:4], "big") / 2**32
        split = SPLITS[2] if point < _SHARES[2] else SPLITS[1] if point < _SHARES[2] + _SHARES[1] else SPLITS[0]
        parts[split].append(line)
    held_out: set[int] = set()
    kept: dict[str, tuple[str, ...]] = {}
    for split in reversed(SPLITS):
        kept[split] = tuple(line for line in parts[split] if held_out.isdisjoint(_shingles(line)))
        for line in parts[split]:
            held_out.update(_shingles(line))
    return Corpus(**kept)


def _shingles(text: str) -> Iterator[int]:
    """Hashes of all runs of :data:`_SHINGLE` words."""
    words = _WORD.findall(text.lower())
    for start in range(len(words) - _SHINGLE + 1):
        yield zlib.crc32(" ".join(words[start : start + _SHINGLE]).encode("ascii"))
