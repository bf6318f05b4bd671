"""Which URLs a remote tier takes, what it says of others, and that no secret is ever said."""

from __future__ import annotations

import logging
import sys

import fsspec
import pytest

from qvpic_rag.bank.remote import RemoteTier
from qvpic_rag.bank.remote_files import Storage
from qvpic_rag.errors import ConfigError, MissingDependencyError, RemoteError
from tests.bank.remotes import S3Server, use_server

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://my.bucket-1/prefix/more//", "s3://my.bucket-1/prefix/more"),
        ("file:///mnt/a share/@x", "file:///mnt/a share/@x"),
        ("memory://prefix", "memory://prefix"),
        ("memory:///prefix", "memory:///prefix"),
    ],
)
def test_urls_that_are_taken(url: str, kept: str) -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    tier = RemoteTier(url)
    assert tier.url == kept
    assert repr(tier) == f"RemoteTier({kept!r})"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket/prefix",
        "/mnt/share",
        "s3:bucket",
        "S3://bucket",
        "s3://",
        "s3:///",
        "file://",
        "file:///",
        "file://relative/folder",
        "s3://bucket//prefix",
        "s3://bucket/../other",
        "s3://bucket/./prefix",
        "s3://bucket/*",
        "s3://bucket/a\nb",
        "s3://bucket/\0",
        "s3://" + "a" * 1100,
        "simplecache::s3://bucket/prefix",
        "s3://bucket/x::memory://y",
        f"s3://key:{SECRET}@bucket/prefix",
        f"s3://key:{SECRET}/more@bucket/prefix",
        f"sftp://user:{SECRET}@host/folder",
        f"sftp://{SECRET}@user@host/folder",
        f"abfs://container/folder?sig={SECRET}",
        f"s3://bucket/prefix#{SECRET}",
        None,
        7,
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RemoteTier(url)
    assert SECRET not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_an_unknown_protocol() -> None:
    with pytest.raises(ConfigError, match="'nosuch' of the remote tier: use s3, gs"):
        RemoteTier("nosuch://bucket/prefix")


@pytest.mark.parametrize(
    ("url", "package", "advice"),
    [("s3://bucket", "s3fs", r"run pip install 'qvpic-rag\[s3\]'"), ("gs://bucket", "gcsfs", "gcsfs")],
)
def test_a_driver_that_is_not_installed(url: str, package: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for protocol in ("s3", "gs"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(MissingDependencyError, match=advice):
        RemoteTier(url)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["timeout_s", "retry_s"])
def test_times_must_be_positive(name: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match="positive"):
        RemoteTier("memory://prefix", **{name: seconds})


def test_no_file_is_outside_of_the_url() -> None:
    """Names come from digests alone; a storage adds them to its root and to nothing else."""
    storage = Storage("memory://there/below", timeout_s=1)
    storage.write("ab/name", b"1")
    assert list(fsspec.filesystem("memory").find("/there")) == ["/there/below/ab/name"]
    storage.remove("ab/name")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_credentials_of_the_environment_are_not_said(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_server(f"http://user:{SECRET}@127.0.0.1:1/", monkeypatch)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    caplog.set_level(logging.DEBUG, logger="qvpic_rag")
    with pytest.raises(RemoteError) as caught:
        RemoteTier("s3://bucket/prefix", timeout_s=0.5).look("a" * 64)
    said = [str(caught.value), *(record.getMessage() for record in caplog.records if "qvpic" in record.name)]
    assert len(said) == 2
    assert SECRET not in "".join(said)
