"""``qvpic bank stats|verify|gc|remove``."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run


def test_stats(run: Run, demo_bank: Path) -> None:
    result = run("bank", "stats", "--bank", demo_bank)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("7 documents, 13 pages in namespace 'default' of ")
    assert " 72 DPI  13 blocks" in result.out
    assert "120 DPI  13 blocks" in result.out
    assert "model  demo" in result.out
    found = run("bank", "stats", "--bank", demo_bank, "--json").json
    assert (found["documents"], found["pages"], found["blocks"]) == (7, 13, {"72": 13, "120": 13})
    assert set(found["block_bytes"]) == {"72", "120"}
    assert found["recipe"]["model"] == "demo"
    empty = run("bank", "stats", "--bank", demo_bank, "--namespace", "other", "--json").json
    assert (empty["documents"], empty["pages"]) == (0, 0)


def test_verify(run: Run, demo_bank: Path) -> None:
    result = run("bank", "verify", "--bank", demo_bank)
    assert (result.code, result.out, result.err) == (0, "39 blocks and pages checked, 0 problems found.\n", "")
    assert run("bank", "verify", "--bank", demo_bank, "--json").json == []


def test_remove_then_collect(run: Run, bank: Path) -> None:
    result = run("bank", "remove", "./badges.txt", "badges.txt", "garden.txt", "--bank", bank)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"2 documents removed; free their space with: qvpic bank gc --bank {bank} (what was")
    young = run("bank", "gc", "--bank", bank)
    assert young.code == 0
    assert young.out.startswith("Removed 0 block(s)")
    assert "--grace 0" in young.err
    dry = run("bank", "gc", "--bank", bank, "--grace", 0, "--dry-run")
    assert dry.out.startswith("Would remove 8 block(s)")
    found = run("bank", "gc", "--bank", bank, "--grace", 0, "--json").json
    assert (found["blocks"], found["dry_run"]) == (8, False)
    assert found["bytes"] > 0
    assert run("bank", "gc", "--bank", bank, "--grace", 0).out.startswith("Removed 0 block(s)")
    assert run("bank", "verify", "--bank", bank).code == 0
    assert run("bank", "stats", "--bank", bank, "--json").json["documents"] == 5


def test_remove_all_or_nothing(run: Run, bank: Path) -> None:
    result = run("bank", "remove", "badges.txt", "badge.txt", "--bank", bank)
    assert (result.code, result.out) == (2, "")
    assert "no document 'badge.txt', and nothing was removed; did you mean 'badges.txt'?" in result.error
    assert "bank list" in run("bank", "remove", "zzz", "--bank", bank).error
    assert run("bank", "stats", "--bank", bank, "--json").json["documents"] == 7


def test_list(run: Run, bank: Path) -> None:
    listed = run("bank", "list", "--bank", bank)
    assert listed.code == 0
    assert "badges.txt  (2 pages)\n" in listed.out
    documents = run("bank", "list", "--bank", bank, "--json").json
    assert {"source": "badges.txt", "pages": 2} in documents
    assert len(documents) == 7


def test_limits_are_set_and_shown(run: Run, bank: Path) -> None:
    size = sum(run("bank", "stats", "--bank", bank, "--json").json["block_bytes"].values())
    shown = run("bank", "limit", "--bank", bank).out
    assert shown == f"bank  no limit\n  namespace 'default' holds {size:,} bytes; quota  no limit\n"
    found = run("bank", "limit", "--bank", bank, "--max-bytes", "1.5GB", "--quota", f"{size // 2}", "--json").json
    assert (found["max_bytes"], found["quota"]) == (1_500_000_000, size // 2)
    stats = run("bank", "stats", "--bank", bank, "--json").json
    assert stats["limit"] == size // 2
    held = sum(stats["block_bytes"].values())
    assert held <= size // 2
    assert found["evicted_bytes"] == size - held
    assert found["namespaces"] == [{"namespace": "default", "bytes": held, "quota": size // 2}]
    assert stats["evicted"] > 0
    assert "evicted to make room" in run("bank", "stats", "--bank", bank).out
    checked = run("bank", "verify", "--bank", bank).out
    assert checked == f"{39 - stats['evicted']} blocks and pages checked, 0 problems found.\n"
    assert (
        f"{held:,} bytes were evicted." in run("bank", "limit", "--bank", bank, "--max-bytes", size, "--quota", 1).out
    )
    gone = run("bank", "limit", "--bank", bank, "--max-bytes", "none", "--quota", "none", "--json").json
    assert (gone["max_bytes"], gone["quota"], gone["evicted_bytes"]) == (None, None, 0)
    for wrong in ("much", "-1", "12XB", "0", "", "1e9"):
        assert run("bank", "limit", "--bank", bank, f"--max-bytes={wrong}").code == 2, wrong


def test_a_namespaces_limit_is_what_it_can_have(run: Run, bank: Path) -> None:
    run("bank", "limit", "--bank", bank, "--max-bytes", "1GB", "--namespace", "acme", "--quota", "400MB")
    assert run("bank", "stats", "--bank", bank, "--json").json["limit"] == 600_000_000
    assert run("bank", "stats", "--bank", bank, "--namespace", "acme", "--json").json["limit"] == 400_000_000
