"""The remote tier gives back the very block that was uploaded, or none."""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from qvpic_rag.bank import remote
from qvpic_rag.bank.remote import RemoteEntry, RemoteTier
from qvpic_rag.bank.remote_files import Storage
from qvpic_rag.errors import CorruptBlockError, RemoteError
from tests.bank.remotes import Local, Raw


@pytest.fixture
def local(tmp_path: Path) -> Local:
    return Local(tmp_path / "blocks", shape=(2, 2, 100, 16))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of tests come in several requests, too."""
    monkeypatch.setattr(remote, "_PIECE", 8192)


def entry_of(local: Local) -> RemoteEntry:
    return RemoteEntry(local.digest, local.nbytes, local.checksum)


def test_a_block_comes_back_as_it_went(remote_url: str, local: Local, tmp_path: Path, small_pieces: None) -> None:
    assert local.nbytes > 2 * 8192
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    assert tier.look(local.digest) is None
    tier.remove(local.digest)

    assert local.upload(tier)
    assert raw.names() == [local.sidecar, local.block]
    assert not local.upload(tier)

    found = RemoteTier(remote_url + "/").look(local.digest)
    assert found == entry_of(local)
    written = tier.fetch(found, tmp_path / "new")
    assert written == remote.Written(tmp_path / "new", local.nbytes, local.checksum)
    assert written.path.read_bytes() == local.path.read_bytes()

    tier.remove(local.digest)
    assert raw.names() == []
    assert tier.look(local.digest) is None
    assert tier.fetch(found, tmp_path / "another") is None
    assert not (tmp_path / "another").exists()
    assert tier.available
    assert tier.skipped == 0


def test_half_a_block_is_not_there(remote_url: str, local: Local, tmp_path: Path) -> None:
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    raw.put(local.block, local.path.read_bytes())
    assert tier.look(local.digest) is None
    raw.remove(local.block)
    raw.put(local.sidecar, entry_of(local).encode())
    assert tier.fetch(entry_of(local), tmp_path / "new") is None
    assert not (tmp_path / "new").exists()
    assert local.upload(tier)  # the sidecar alone is no reason to skip it
    assert tier.fetch(entry_of(local), tmp_path / "new") is not None


DAMAGES = {
    "flipped": lambda data, other: data[:9000] + bytes([data[9000] ^ 1]) + data[9001:],
    "cut": lambda data, other: data[:-1],
    "cut between requests": lambda data, other: data[:8192],
    "empty": lambda data, other: b"",
    "longer": lambda data, other: data + b"\0",
    "another block": lambda data, other: other,
}


def test_a_damaged_block_is_found_out_and_replaced(
    remote_url: str, local: Local, tmp_path: Path, small_pieces: None
) -> None:
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    other = Local(tmp_path / "blocks", "two").path.read_bytes()
    local.upload(tier)
    for kind, damage in DAMAGES.items():
        raw.put(local.block, damage(local.path.read_bytes(), other))
        with pytest.raises(CorruptBlockError, match=r"is damaged.*: compile and store it again"):
            tier.fetch(entry_of(local), tmp_path / "new")
        assert not (tmp_path / "new").exists()
        assert tier.available, kind  # whoever gives back damaged bytes has answered

        assert local.upload(tier), kind
        assert not local.upload(tier), kind
        written = tier.fetch(entry_of(local), tmp_path / "new")
        assert written is not None
        assert written.path.read_bytes() == local.path.read_bytes()
        written.path.unlink()


@pytest.mark.parametrize("remote_url", ["memory", "file"], indirect=True)
def test_a_whole_block_under_another_name_is_found_out(remote_url: str, local: Local, tmp_path: Path) -> None:
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    other = Local(tmp_path / "blocks", "two")
    raw.put(local.block, other.path.read_bytes())
    raw.put(local.sidecar, entry_of(other).encode())
    found = tier.look(local.digest)
    assert found is not None
    with pytest.raises(CorruptBlockError, match="another key"):
        tier.fetch(found, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("remote_url", ["memory", "file"], indirect=True)
def test_bytes_that_are_no_block_are_found_out(remote_url: str, local: Local, tmp_path: Path) -> None:
    data = b"what is this" * 100
    foreign = RemoteEntry(local.digest, len(data), remote.xxhash.xxh3_128(data).hexdigest())
    raw = Raw(remote_url)
    raw.put(local.block, data)
    raw.put(local.sidecar, foreign.encode())
    tier = RemoteTier(remote_url)
    with pytest.raises(CorruptBlockError, match="is damaged"):
        tier.fetch(foreign, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_no_sidecar_is_refused_and_replaced(remote_url: str, local: Local) -> None:
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    for data in (b"", b"{}", b"[]", b"null", b"\xff", b"9" * 10**6, b"[" * 10**5):
        raw.put(local.sidecar, data)
        with pytest.raises(CorruptBlockError, match="sidecar"):
            tier.look(local.digest)
        assert tier.available
        assert local.upload(tier)
        assert tier.look(local.digest) == entry_of(local)


def _mutate(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(changed) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(4)
        elif kind == 1 and at < len(changed):
            changed[at] = ord(chance.choice('0123456789abcdef{}",:-. '))
        elif kind == 2:
            del changed[at : at + chance.randint(1, 5)]
        else:
            changed[at:at] = chance.choice([b"0", b"e9", b" ", b'"', b"-", b"\n", data])
    return bytes(changed)


def test_no_mutated_sidecar_leads_to_a_file(local: Local, tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    tier, raw, chance = RemoteTier(url), Raw(url), random.Random(5)
    local.upload(tier)
    told = 0
    for _ in range(600):
        data = _mutate(entry_of(local).encode(), chance)
        raw.put(local.sidecar, data)
        try:
            found = tier.look(local.digest)
            assert found is not None
            assert (found == entry_of(local)) == (data == entry_of(local).encode())
            if found != entry_of(local):
                tier.fetch(found, tmp_path / "new")
                pytest.fail("a file for a mutated sidecar")
        except CorruptBlockError:
            told += 1
        assert not (tmp_path / "new").exists()
    assert told > 500


@pytest.mark.parametrize("version", [0, 2])
def test_sidecars_of_other_versions_are_refused(version: int, local: Local, tmp_path: Path) -> None:
    url = f"memory://{tmp_path}"
    local.upload(RemoteTier(url))
    data = entry_of(local).encode().replace(b'"version":1', b'"version":%d' % version)
    Raw(url).put(local.sidecar, data)
    with pytest.raises(CorruptBlockError, match="this version"):
        RemoteTier(url).look(local.digest)


@pytest.mark.parametrize("digest", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 32 + "/" * 32])
def test_nothing_but_a_digest_becomes_a_name(digest: str, local: Local, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/remote"
    tier = RemoteTier(url)
    for call in (
        lambda: tier.look(digest),
        lambda: tier.fetch(RemoteEntry(digest, local.nbytes, local.checksum), tmp_path / "new"),
        lambda: tier.upload(digest, *local.row[1:]),
        lambda: tier.remove(digest),
    ):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks"]


@pytest.mark.parametrize("remote_url", ["memory", "file"], indirect=True)
def test_a_local_file_that_is_not_the_block_is_not_uploaded(remote_url: str, local: Local, tmp_path: Path) -> None:
    tier, raw = RemoteTier(remote_url), Raw(remote_url)
    other = Local(tmp_path / "blocks", "two")
    with pytest.raises(CorruptBlockError, match="another key"):
        tier.upload(local.digest, *other.row[1:])
    data = local.path.read_bytes()
    local.path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptBlockError, match="checksum"):
        local.upload(tier)
    local.path.write_bytes(data[:-1])
    with pytest.raises(CorruptBlockError, match="bytes instead of"):
        local.upload(tier)
    local.path.unlink()
    with pytest.raises(FileNotFoundError):
        local.upload(tier)
    assert raw.names() == []
    assert tier.available


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_replaced_while_it_is_uploaded_stays_invisible(
    gone: bool, local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = RemoteTier(f"memory://{tmp_path}")
    again = Local(tmp_path / "blocks", seed=9, shape=(2, 2, 100, 16))  # the same block, compiled to other numbers
    assert again.digest == local.digest
    assert again.checksum != local.checksum
    send = Storage.send

    def replace(self: Storage, name: str, file: Path, nbytes: int) -> None:
        again.path.unlink() if gone else again.path.replace(file)
        if gone:
            file.unlink()
        send(self, name, file, nbytes)

    monkeypatch.setattr(Storage, "send", replace)
    with pytest.raises(FileNotFoundError if gone else CorruptBlockError):
        local.upload(tier)
    assert tier.look(local.digest) is None


def test_a_replacement_that_fails_leaves_no_mixture(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = RemoteTier(f"memory://{tmp_path}", retry_s=1e-6)
    local.upload(tier)
    again = Local(tmp_path / "blocks", seed=9)

    def fail(self: Storage, name: str, *arguments: Any) -> None:
        raise OSError(errno.EIO, "secret words")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "send", fail)
        with pytest.raises(RemoteError, match=r"failed \(OSError: Input/output error\)") as caught:
            again.upload(tier)
    assert "secret" not in str(caught.value)
    assert tier.look(local.digest) is None
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "size", lambda self, name: 3)
        with pytest.raises(RemoteError, match="did not keep"):
            again.upload(tier)
    assert tier.look(local.digest) is None
    assert again.upload(tier)
    assert tier.look(local.digest) == entry_of(again)


def test_failures_of_the_local_disk_are_no_failures_of_the_remote(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = RemoteTier(f"memory://{tmp_path}")
    local.upload(tier)
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        tier.fetch(entry_of(local), tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"mine"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        tier.fetch(entry_of(local), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert tier.available


@pytest.mark.parametrize("remote_url", ["file", "s3"], indirect=True)
def test_several_may_upload_one_block_at_a_time(remote_url: str, local: Local, tmp_path: Path) -> None:
    """Whoever looks meanwhile finds the whole block or none."""
    raw = Raw(remote_url)
    tiers = [RemoteTier(remote_url) for _ in range(2)]
    failures: list[BaseException] = []
    ready = threading.Barrier(3)

    def guarded(work: Any) -> None:
        try:
            ready.wait()
            work()
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        for number in range(4):
            found = tiers[0].look(local.digest)
            if found is not None:
                tiers[0].fetch(found, tmp_path / f"new {number}")

    work = [lambda tier=tier: local.upload(tier) for tier in tiers] + [read]
    threads = [threading.Thread(target=guarded, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert raw.names() == [local.sidecar, local.block]
    assert raw.get(local.block) == local.path.read_bytes()
    assert all(path.read_bytes() == local.path.read_bytes() for path in tmp_path.glob("new *"))
