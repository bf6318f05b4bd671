"""What only a real process shows: signals, closed pipes, other encodings, two at once, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qvpic_rag import QVPIC, Bank, Document
from tests.cli.conftest import Run
from tests.cli.test_ask import ANSWER, QUESTION

ROOT = Path(__file__).parents[2]
# A shell that runs the tests in the background ignores SIGINT, and so would the processes started from here.
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom qvpic_rag.cli import main; main()"
COMMAND = [sys.executable, "-c", CODE]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


def start(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    command = [*COMMAND, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, env={**ENVIRONMENT, **variables})


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out.decode(), err.decode()


def test_an_interrupted_ingest_goes_on_where_it_stopped(run: Run, tmp_path: Path) -> None:
    documents, bank = tmp_path / "docs", tmp_path / "bank"
    documents.mkdir()
    for number in range(100, 180):
        (documents / f"{number}.txt").write_text(f"The desk room of Omar Reyes is B{number}.", encoding="utf-8")
    process = start("ingest", documents, "--bank", bank, "--model", "demo")
    limit = time.monotonic() + 60
    while len(list(bank.glob("blocks/*/*.safetensors"))) < 80 and time.monotonic() < limit:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (1, "")
    assert err == "Interrupted; what was stored stays, run the same command again to go on.\n"
    with Bank.open(bank) as store:  # at most the file that was being stored, which no row names yet
        assert {problem.kind for problem in store.verify(grace_s=0)} <= {"orphan", "temporary"}
    report = run("ingest", documents, "--bank", bank, "--json").json
    assert report["compiled"] <= 160 - 79  # the last of the 80 may have been seen before its row was
    assert len(report["added"]) + len(report["unchanged"]) == 80
    assert report["unchanged"]


def test_two_at_once_and_another_encoding(bank: Path) -> None:
    with QVPIC.open(bank) as rag:
        rag.ingest(Document("The desk room of Omar Reyes is B214.", "zoë 🔑.txt"), progress=False)
    for path in (bank / "index").iterdir():
        path.unlink()  # so that both make it
    ask = ("ask", QUESTION, "--bank", bank)
    both = (start(*ask, "--json", PYTHONIOENCODING="ascii"), start(*ask, PYTHONIOENCODING="ascii"))
    (code, out, err), (plain_code, plain_out, plain_err) = (finish(process) for process in both)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert out.isascii()
    assert found["answer"] == ANSWER
    assert "zoë 🔑.txt" in {page["source"] for page in found["pages"]}
    assert (plain_code, plain_out) == (0, f"{ANSWER}\n")
    assert "zo\\xeb \\U0001f511.txt, page 1" in plain_err


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_nobody_reads_the_output(demo_bank: Path, options: tuple[str, ...]) -> None:
    process = start("bank", "stats", "--bank", demo_bank, *options)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=120), err) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_into_a_full_disk(demo_bank: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "bank", "stats", "--bank", str(demo_bank), "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("Error: The output cannot be written (No space left on device)")
    assert done.stderr.count(b"\n") == 1


MEMORY = """
import re, sys, threading, time
peak = 0
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
def watch():
    global peak
    while True:
        peak = max(peak, anonymous())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
from qvpic_rag.cli import main
try:
    main()
finally:
    print(max(peak, anonymous()), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_peak_memory_of_a_question_does_not_grow_with_the_bank(tmp_path: Path) -> None:
    """Twenty times the pages, the same number of them retrieved: the same memory, of which blocks are a small part."""

    def ingest(numbers: range) -> None:
        with QVPIC.from_pretrained("demo", tmp_path / "bank") as rag:
            texts = (f"The desk room of Omar Reyes is B{n}. Locker number of Ines Falk: {n}." for n in numbers)
            rag.ingest([Document(text, str(n)) for n, text in zip(numbers, texts, strict=True)], progress=False)

    def peak() -> tuple[float, int]:
        command = [sys.executable, "-c", MEMORY, "ask", QUESTION, "--bank", str(tmp_path / "bank"), "--json"]
        environment = {**ENVIRONMENT, "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=True)
        return int(done.stderr) / 1e3, json.loads(done.stdout)["usage"]["kv_bytes"]

    ingest(range(100, 120))
    few, few_bytes = peak()
    ingest(range(120, 500))
    with Bank.open(tmp_path / "bank") as store:
        stored = sum(store.stats().block_bytes.values()) / 1e6
    many, many_bytes = peak()
    assert few_bytes == many_bytes
    assert stored > 100
    assert many - few < 8, f"{few:.1f} MB with 20 pages, {many:.1f} MB with 400, {stored:.0f} MB of blocks"
