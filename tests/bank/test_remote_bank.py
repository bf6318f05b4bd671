"""A bank above a remote tier: read-through, write-behind, and answers while the remote is down."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank, BlockLoader
from qvpic_rag.errors import ConfigError, MissingBlockError
from tests.bank import samples
from tests.bank.remotes import BUCKET, Raw, s3_server

FLUSH_S = 20.0


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory://{tmp_path.name}"
        return
    with s3_server(monkeypatch):
        yield f"s3://{BUCKET}/{tmp_path.name}"


def tiers(bank: Bank, *texts: str) -> dict[str, int]:
    with BlockLoader(bank.blocks) as loader:
        for text in texts:
            wanted = samples.block(bank, samples.page(text))
            assert samples.same(loader.get(wanted.key), wanted)
        return dict(loader.tiers)


def test_another_machine_reads_what_was_put_here(tmp_path: Path, url: str) -> None:
    with Bank.create(tmp_path / "here", samples.recipe(), remote=url) as here:
        samples.put(here, "a.txt", ["one", "two"])
        assert here.flush(FLUSH_S) == 0
        assert len(Raw(url).names()) == 8
    with Bank.create(tmp_path / "there", samples.recipe(), remote=url, ram_bytes=10**6) as there:
        assert tiers(there, "one", "two") == {"remote": 2}
        assert tiers(there, "one", "two") == {"ram": 2}
        assert there.flush(FLUSH_S) == 0
        with pytest.raises(MissingBlockError):
            tiers(there, "three")
        assert there.stats().counters == {"hits ram": 2, "hits remote": 2, "misses": 1, "written_blocks": 2}
        assert there.verify(grace_s=0) == []
    with Bank.open(tmp_path / "there") as there:
        assert tiers(there, "one", "two") == {"disk": 2}


def test_evicted_and_damaged_blocks_come_back(tmp_path: Path) -> None:
    with Bank.create(tmp_path / "bank", samples.recipe(), remote=f"memory://{tmp_path.name}") as bank:
        samples.put(bank, "a.txt", ["one", "two"])
        assert bank.flush(FLUSH_S) == 0
        bank.set_max_bytes(1)
        assert bank.stats().blocks == {}
        bank.set_max_bytes(None)
        assert tiers(bank, "one") == {"remote": 1}
        path = next((bank.path / "blocks").rglob("*.safetensors"))
        path.write_bytes(path.read_bytes()[:-1])
        assert tiers(bank, "one") == {"remote": 1}
        assert bank.stats().counters["quarantines"] == 1
        assert tiers(bank, "one") == {"disk": 1}


def test_what_the_remote_has_goes_first(tmp_path: Path) -> None:
    with Bank.create(tmp_path / "bank", samples.recipe()) as bank:
        bank.put_block(samples.block(bank, samples.page("old")))
    with Bank.open(tmp_path / "bank", remote=f"memory://{tmp_path.name}") as bank:
        assert bank.flush(FLUSH_S) == 0, "what was put without it is uploaded when it is opened with it"
    with Bank.open(tmp_path / "bank") as bank:
        new = samples.block(bank, samples.page("new"))
        bank.put_block(new, cost_s=0.001)
        bank.set_max_bytes(sum(bank.stats().block_bytes.values()) - 1)
        assert bank.has_block(new.key)


def test_a_remote_that_is_down_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"s3://{BUCKET}/x"
    with s3_server(monkeypatch), Bank.create(tmp_path / "here", samples.recipe(), remote=url) as here:
        samples.put(here, "a.txt", ["one"])
        assert here.flush(FLUSH_S) == 0
    with Bank.create(tmp_path / "there", samples.recipe(), remote=url) as there, caplog.at_level(logging.WARNING):
        with pytest.raises(MissingBlockError):
            tiers(there, "one")
        block = samples.block(there, samples.page("two"))
        there.put_block(block)  # never waits for the remote
        assert tiers(there, "two") == {"disk": 1}
        with pytest.raises(MissingBlockError):
            tiers(there, "one")
    assert "the remote tier" in caplog.text


def test_a_damaged_remote_block_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = f"memory://{tmp_path.name}"
    with Bank.create(tmp_path / "here", samples.recipe(), remote=url) as here:
        samples.put(here, "a.txt", ["one"])
        assert here.flush(FLUSH_S) == 0
    raw = Raw(url)
    for name in raw.names():
        if name.endswith(".safetensors"):
            raw.put(name, raw.get(name)[:-1] + b"\0\0")
    with Bank.create(tmp_path / "there", samples.recipe(), remote=url) as there:
        with pytest.raises(MissingBlockError):
            tiers(there, "one")
        assert "was not read from the remote tier" in caplog.text
        assert there.disk_bytes() > 0
        assert [path for path in (there.path / "blocks").rglob("*") if path.is_file()] == []


def test_tenants_share_a_remote_and_see_nothing_of_each_other(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}"
    with Bank.create(tmp_path / "bank", samples.recipe(), "a", remote=url) as one:
        samples.put(one, "a.txt", ["one"])
        assert one.flush(FLUSH_S) == 0
    with Bank.open(tmp_path / "bank", "b", remote=url) as other:
        with pytest.raises(MissingBlockError):
            tiers(other, "one")
        assert other.flush(FLUSH_S) == 0
    assert len(Raw(url).names()) == 4


@pytest.mark.parametrize("wrong", ["", "no-such-protocol://x", "s3://user:secret@bucket/x", "simplecache::s3://b/x"])
def test_wrong_urls_are_refused_before_anything_is_opened(tmp_path: Path, wrong: str) -> None:
    Bank.create(tmp_path / "bank", samples.recipe()).close()
    with pytest.raises(ConfigError) as caught:
        Bank.open(tmp_path / "bank", remote=wrong)
    assert "secret" not in str(caught.value)
