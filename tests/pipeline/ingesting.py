"""Run in processes of their own by test_processes.py: ingests that are killed, and ingests beside each other.

The model is loaded once; the processes at work are forked from this one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from qvpic_rag import QVPIC
from qvpic_rag.bank import Bank
from qvpic_rag.records import Document

FIRST = ["Marta", "Omar", "Ines", "Tove"]
LAST = ["Lind", "Reyes", "Falk"]
NAMES = [f"{first} {last}" for last in LAST for first in FIRST]


def documents(numbers: range) -> list[Document]:
    """Documents of two pages, each of which it shares with a neighbour."""
    pages = [f"The badge code of {name} is TB-{201 + n}." for n, name in enumerate(NAMES)]
    return [Document(f"{pages[n]}\f{pages[(n + 1) % len(pages)]}", f"{n}.txt") for n in numbers]


def opened(path: Path) -> QVPIC:
    return QVPIC.from_pretrained("demo", bank=path, batch_size=1)


def forked(work: Callable[[], object], output: int | None = None) -> int:
    """A child that does this work and exits with 0, or with 1 where it failed."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        result = work()
        if output is not None:
            os.write(output, json.dumps(result).encode() + b"\n")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# ---------------------------------------------------------------------- killed


def _ingest_aloud(path: Path, output: int) -> None:
    """Ingest, and say what has been acknowledged as soon as it is."""
    with opened(path) as rag:
        put_block, put_document = rag.bank.put_block, rag.bank.put_document

        def block(*arguments, **options):
            put_block(*arguments, **options)
            os.write(output, f"block {arguments[0].key.digest}\n".encode())

        def document(source, *arguments):
            put_document(source, *arguments)
            os.write(output, f"document {source}\n".encode())

        rag.bank.put_block, rag.bank.put_document = block, document  # type: ignore[method-assign]
        rag.ingest(documents(range(4)), progress=False)


def _killed_after(path: Path, seconds: float) -> tuple[set[str], set[str], bool]:
    """Blocks and documents that an ingest acknowledged before it was killed, and whether it was."""
    reader, writer = os.pipe()
    pid = forked(lambda: _ingest_aloud(path, writer))
    os.close(writer)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)  # a child that has ended stays a zombie until it is waited for
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as file:
        lines = [line.split(" ", 1) for line in file.read().splitlines()]
    if not os.WIFSIGNALED(status) and status != 0:
        raise RuntimeError("the ingest failed by itself")
    blocks, names = ({rest for word, rest in lines if word == kind} for kind in ("block", "document"))
    return blocks, names, os.WIFSIGNALED(status)


def _check(path: Path, blocks: set[str], names: set[str]) -> None:
    """Everything acknowledged is there, and nothing is half there."""
    with Bank.open(path) as bank:
        assert names <= {document.source for document in bank.documents()}
        stored = {file.stem for file in (path / "blocks").rglob("*.safetensors")}
        assert blocks <= stored
        assert bank.verify() == []
        for document in bank.documents():
            pages = bank.document_pages(document.source)
            assert len(pages) == document.pages == 2
            for page in pages:
                for dpi in bank.recipe.dpis:
                    bank.get_block(bank.recipe.block_key(page.digest, dpi, bank.namespace))


def kill(folder: Path, kills: int, seed: int = 5) -> dict[str, int]:
    """Kill ingests at random moments, each bank again and again until it is complete."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    opened(folder / "warm").close()  # loads what all children share
    start = time.perf_counter()
    pid = forked(lambda: _ingest_aloud(folder / "timed", os.open(os.devnull, os.O_WRONLY)))
    assert os.waitpid(pid, 0)[1] == 0
    whole = time.perf_counter() - start
    done = banks = partly = 0
    while done < kills:
        path = folder / f"bank{banks}"
        banks += 1
        blocks: set[str] = set()
        names: set[str] = set()
        Bank.create(path, Bank.recipe_at(folder / "timed")).close()  # type: ignore[arg-type]
        while True:
            more, documents_, killed = _killed_after(path, chance.uniform(0, 1.3 * whole))
            blocks |= more
            names |= documents_
            _check(path, blocks, names)
            if not killed:
                break
            done += 1
            partly += 0 < len(blocks) < 10
        with opened(path) as rag:  # what is left is cleaned up by whoever writes next
            report = rag.ingest([*documents(range(4)), Document("One page more.", "more.txt")], progress=False)
            assert len(report.unchanged) == 4
        files = [file for file in path.rglob("*") if file.is_file() and file.suffix in (".tmp", ".lock")]
        assert files == [], files
        _same(path, folder / "timed")
    return {"kills": done, "banks": banks, "partly": partly}


def _same(path: Path, other: Path) -> None:
    """A bank that was killed many times answers as one that was not."""
    answers = []
    for place in (path, other):
        with opened(place) as rag:
            answers.append(rag.ask("What is the badge code of Omar Lind?", top_k=1, max_new_tokens=12).text)
    assert answers[0] == answers[1], answers


# ---------------------------------------------------------------------- side by side


def beside(folder: Path, writers: int, readers: int) -> dict[str, int]:
    """Ingests of overlapping documents, and questions, at the same time."""
    torch.set_num_threads(1)
    path = folder / "bank"
    with opened(path) as rag:
        rag.ingest(documents(range(1)), progress=False)
    reader, output = os.pipe()
    count = len(NAMES)

    def write(shift: int) -> int:
        order = documents(range(count))
        with opened(path) as rag:
            return rag.ingest(order[shift:] + order[:shift], progress=False).compiled

    def ask() -> int:
        compiled = 0
        with opened(path) as rag:
            for _ in range(6):
                answer = rag.ask("What is the badge code of Marta Lind?", top_k=1, max_new_tokens=12)
                assert "TB-201" in answer.text, answer.text
                compiled += len(answer.route.compiled)
        return compiled

    pids = [forked(lambda shift=n * count // writers: write(shift), output) for n in range(writers)]
    pids += [forked(ask, output) for _ in range(readers)]
    os.close(output)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert statuses == [0] * len(pids), statuses
    with os.fdopen(reader) as file:
        compiled = sum(json.loads(line) for line in file)
    with Bank.open(path) as bank:
        assert bank.verify(grace_s=0) == []
        assert {document.source for document in bank.documents()} == {f"{n}.txt" for n in range(count)}
        assert all(document.pages == 2 for document in bank.documents())
        return {"compiled": compiled, "pages": bank.page_count(), "blocks": sum(bank.stats().blocks.values())}


def main(work: str, folder: str, *numbers: str) -> None:
    figures = {"kill": kill, "beside": beside}[work](Path(folder), *map(int, numbers))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
