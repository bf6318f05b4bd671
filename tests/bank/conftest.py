"""A bank to use, files found in it, and places for a remote tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qvpic_rag.bank import Bank
from tests.bank import remotes, samples


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    with Bank.create(tmp_path / "bank", samples.recipe()) as made:
        yield made


@pytest.fixture
def block_path(bank: Bank) -> Path:
    """The file of a stored block: page "one" at 72 DPI."""
    block = samples.block(bank, samples.page("one"))
    bank.put_block(block)
    digest = block.key.digest
    return bank.path / "blocks" / digest[:2] / f"{digest}.safetensors"


@pytest.fixture(scope="session")
def shared_s3() -> Iterator[remotes.S3Server]:
    """A running server with a bucket; leave it running."""
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    pytest.importorskip("moto.moto_server.threaded_moto_server", reason="moto[server,s3] is not installed")
    server = remotes.S3Server()
    server.start()
    server.make_bucket()
    yield server
    server.stop()


@pytest.fixture
def s3(shared_s3: remotes.S3Server, monkeypatch: pytest.MonkeyPatch) -> remotes.S3Server:
    """s3:// is a server on this machine."""
    remotes.use_server(shared_s3.url, monkeypatch)
    return shared_s3


@pytest.fixture(params=["memory", "file", "s3"])
def remote_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place for a remote tier."""
    if request.param == "s3":
        request.getfixturevalue("s3")
    host = {"memory": "", "file": "", "s3": f"{remotes.BUCKET}"}[request.param]
    return f"{request.param}://{host}{tmp_path}/remote"
