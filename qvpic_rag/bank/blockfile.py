"""One block as one safetensors file: format, writing, checked reading.

Layout: the safetensors header (8 bytes of length, JSON), then the tensors without gaps. In format version 1, of native
blocks, they are ``token_ids``, ``positions``, ``keys``, ``values``. In version 2, of packed ones, the last two are
``keys.codes``, ``values.codes``, ``keys.scales``, for int4 ``keys.lows``, and the same of ``values``. The header's
metadata holds the format's name and version, the span and every field of the block's key (``storage`` in version 2
only). The header is padded with spaces so that keys start at a multiple of 64 bytes, and it has exactly one spelling: a
reader spells what it understood and compares bytes, so nothing unusual gets past it. Any safetensors reader opens the
files. The header is written here, and not by the safetensors package, because that one does not promise an order of
the metadata (the same block must give the same bytes) and wants the whole file in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from qvpic_rag.bank.writers import try_lock
from qvpic_rag.errors import BankMismatchError, CompileError, CorruptBlockError
from qvpic_rag.records import BlockKey, KVBlock

if TYPE_CHECKING:
    import torch

__all__ = [
    "BlockHeader",
    "Written",
    "check_file",
    "encoded",
    "header_of",
    "load_block",
    "read_header",
    "sync_folder",
    "write_temporary",
]

_FORMAT = "qvpic-block"
_GROUP = 64  # tokens that share a key channel's scale, in format version 2
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SIZES = {"I64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}
_TORCH = {"I64": "int64", "I8": "int8", "U8": "uint8", **{short: name for name, short in _DTYPES.items()}}
_PACKED = {"int8": ("I8", 1, ("scales",)), "int4": ("U8", 2, ("scales", "lows"))}  # codes in a byte, parameters
_ALIGNMENT = 64
_LONGEST_HEADER = 1 << 16
_CHUNK = 1 << 20


@dataclass(frozen=True)
class BlockHeader:
    """What a block file says about itself; ``shape`` is ``[layers, kv_heads, tokens, head_dim]``."""

    key: BlockKey
    span: int
    shape: tuple[int, int, int, int]
    axes: int

    def layout(self) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
        """Per tensor, in file order: safetensors dtype, shape, first byte and end, counted from the data's start."""
        tokens = self.shape[2]
        entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        begin = 0
        for tensor, dtype, shape in (
            ("token_ids", "I64", (tokens,)),
            ("positions", "I64", (self.axes, tokens)),
            *_numbers(self.key, self.shape),
        ):
            end = begin + _SIZES[dtype] * math.prod(shape)
            entries[tensor] = (dtype, shape, begin, end)
            begin = end
        return entries

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return max(end for _, _, _, end in self.layout().values())

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole file."""
        return len(self.encode()) + self.nbytes

    def encode(self) -> bytes:
        """The header's one spelling, its 8 bytes of length included."""
        key = {name: str(value) for name, value in self.key.tagged().items()}
        head: dict[str, Any] = {
            "__metadata__": {"format": _FORMAT, "version": _version(self.key), "span": str(self.span), **key}
        }
        layout = self.layout()
        for tensor, (dtype, shape, begin, end) in layout.items():
            head[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(head, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        text += b" " * (-(8 + len(text) + layout["positions"][3]) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @classmethod
    def parse(cls, data: bytes, nbytes: int) -> BlockHeader:
        """The header at the start of ``data``, of a file of ``nbytes`` bytes; ``CorruptBlockError`` on any damage."""
        length = int.from_bytes(data[:8], "little")
        raw = data[: 8 + length]
        if len(data) < 8 or length > _LONGEST_HEADER or len(raw) < 8 + length:
            raise CorruptBlockError("it is cut off, or not a block file")
        try:
            head = json.loads(raw[8:].decode("ascii"))
            header = cls._understand(head)
            spelled = header.encode()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise CorruptBlockError("its header is damaged") from error
        if spelled != raw or nbytes != len(raw) + header.nbytes:
            raise CorruptBlockError("its header is damaged, or it is cut off")
        return header

    @classmethod
    def _understand(cls, head: Any) -> BlockHeader:
        meta = head["__metadata__"]
        named: dict[str, Any] = {f.name: meta[f.name] for f in fields(BlockKey) if f.name != "storage"}
        key = BlockKey(**{**named, "dpi": int(named["dpi"])}, storage=meta.get("storage", "native"))
        if meta["format"] != _FORMAT or meta["version"] != _version(key):
            raise ValueError("another format")
        # Scales have all of a head's channels; two codes may share a byte.
        layers, heads, _, head_dim = head["keys" if key.storage == "native" else "keys.scales"]["shape"]
        axes, tokens = head["positions"]["shape"]
        header = cls(key, int(meta["span"]), (layers, heads, tokens, head_dim), axes)
        sizes = (*header.shape, header.axes)
        if any(type(size) is not int or size < 1 for size in sizes) or header.span < 0:
            raise ValueError("an impossible size")
        return header


def _version(key: BlockKey) -> str:
    return "1" if key.storage == "native" else "2"


def _numbers(key: BlockKey, shape: tuple[int, int, int, int]) -> Sequence[tuple[str, str, tuple[int, ...]]]:
    """Name, safetensors dtype and shape of the tensors that hold keys and values."""
    native = _DTYPES[key.dtype]  # refuses other dtypes in packed blocks, too
    if key.storage == "native":
        return [(name, native, shape) for name in ("keys", "values")]
    layers, heads, tokens, head_dim = shape
    # Codes first: two tensors of equal length, so that the numbers of two bytes after them start at even places.
    dtype, in_a_byte, parameters = _PACKED[key.storage]
    shared = {"keys": (-(-tokens // _GROUP), head_dim), "values": (tokens, 1)}
    codes = [(f"{name}.codes", dtype, (layers, heads, tokens, -(-head_dim // in_a_byte))) for name in shared]
    return codes + [
        (f"{name}.{parameter}", "BF16", (layers, heads, *sizes))
        for name, sizes in shared.items()
        for parameter in parameters
    ]


@dataclass(frozen=True)
class Written:
    """A temporary file that is complete and on the disk."""

    path: Path
    nbytes: int
    checksum: str


def header_of(block: KVBlock) -> BlockHeader:
    """The header that a block gets; ``CompileError`` when its tensors do not belong together, ``BankMismatchError``
    when they are not of its key's dtype and storage."""
    from qvpic_rag.packing import storage_of  # see _bytes_of

    key = block.key
    for field, known in (("dtype", tuple(_DTYPES)), ("storage", ("native", *_PACKED))):
        if getattr(key, field) not in known:
            raise BankMismatchError(
                f"A block cannot be stored as {getattr(key, field)!r}; use {', '.join(known)}.", field=field
            )
    for name, tensor in (("keys", block.keys), ("values", block.values)):
        found = {"dtype": str(tensor.dtype).removeprefix("torch."), "storage": storage_of(tensor)}
        for field, value in found.items():
            if value != getattr(key, field):
                raise BankMismatchError(
                    f"The block's {name} are {value}, but its key says {getattr(key, field)}.", field=field
                )
    shape = tuple(block.keys.shape)
    tokens, positions = tuple(block.token_ids.shape), tuple(block.positions.shape)
    sound = len(shape) == 4 and min(shape) > 0 and tuple(block.values.shape) == shape and tokens == (shape[2],)
    sound = sound and len(positions) == 2 and positions[0] > 0 and positions[1] == shape[2]
    whole = {str(block.token_ids.dtype), str(block.positions.dtype)} == {"torch.int64"}
    if not sound or not whole or type(block.span) is not int or block.span < 0:
        raise CompileError(
            f"The compiled block does not fit together: keys {list(shape)}, values {list(block.values.shape)}, "
            f"token ids {list(tokens)}, positions {list(positions)} (both int64) and span {block.span!r}."
        )
    header = BlockHeader(key, block.span, (shape[0], shape[1], shape[2], shape[3]), positions[0])
    for name, (kind, expected, _, _) in header.layout().items():
        tensor = attrgetter(name)(block)
        if tuple(tensor.shape) != expected or str(tensor.dtype) != f"torch.{_TORCH[kind]}":
            raise CompileError(
                f"The packed block does not fit together: its {name} are {tensor.dtype} {list(tensor.shape)} instead "
                f"of {_TORCH[kind]} {list(expected)}."
            )
    return header


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch  # here, so that listing and checking a bank does not load torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    raw: Any = flat.view(torch.uint8).numpy()
    return memoryview(raw)


def write_temporary(path: Path, block: KVBlock) -> Written:
    """Write a block to a new file and flush it to the disk.

    The checksum is XXH3 (128 bit) over the whole file. It stands against accidents (torn writes, bad sectors, foreign
    or swapped files), which a 128-bit hash of any kind catches; whoever can write the folder can also write the
    database, so a cryptographic hash would protect no better, and it would be 20 times slower than the disk.

    Raises
    ------
    OSError
        As the system reports it; the temporary file is gone then.
    """
    hasher = xxhash.xxh3_128()
    try:
        with path.open("xb") as file:
            for part in encoded(block):
                # Hashed and written piece by piece, so that the second use finds the bytes in the processor's cache.
                for start in range(0, len(part), _CHUNK):
                    piece = part[start : start + _CHUNK]
                    hasher.update(piece)
                    file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            nbytes = file.tell()
    except BaseException:
        with contextlib.suppress(OSError):  # the first failure is the one to report
            path.unlink(missing_ok=True)
        raise
    return Written(path, nbytes, hasher.hexdigest())


def encoded(block: KVBlock) -> Iterator[memoryview]:
    """The bytes of a block's file, which have one spelling, part by part; tensors on the CPU are not copied.

    ``CompileError`` and ``BankMismatchError`` as :func:`header_of`.
    """
    header = header_of(block)
    yield memoryview(header.encode())
    for name in header.layout():
        yield _bytes_of(attrgetter(name)(block))


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path, nbytes: int) -> int:
    """A descriptor of the file after its size was found right."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptBlockError("it is not a file")
        if status.st_size != nbytes:
            raise CorruptBlockError(f"it has {status.st_size} bytes instead of {nbytes}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(descriptor: int, nbytes: int, checksum: str, into: memoryview | None = None) -> None:
    """Raise unless the file's bytes are those of the checksum; they are left in ``into`` where it is given.

    The bytes are hashed through ``read``, although a mapping would do: a bad sector or a file cut short is an error
    here, while touching it through a mapping kills the process.
    """
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_CHUNK, nbytes))) if into is None else into
    done = 0
    with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
        while done < nbytes:
            piece = buffer[:_CHUNK] if into is None else buffer[done : done + _CHUNK]
            count = file.readinto(piece)
            if not count:
                break
            hasher.update(piece[:count])
            done += count
    if done != nbytes or hasher.hexdigest() != checksum:
        raise CorruptBlockError("its checksum is not the one it was stored with")


def _header(descriptor: int, nbytes: int) -> BlockHeader:
    return BlockHeader.parse(os.pread(descriptor, 8 + _LONGEST_HEADER, 0), nbytes)


def read_header(path: Path, nbytes: int) -> BlockHeader:
    """The header of a stored block's file, without looking at the tensors; errors as :func:`check_file`."""
    descriptor = _open(path, nbytes)
    try:
        return _header(descriptor, nbytes)
    finally:
        os.close(descriptor)


def check_file(path: Path, nbytes: int, checksum: str) -> BlockHeader:
    """The header of a stored block after everything about the file was found right.

    Raises
    ------
    CorruptBlockError
        The message is the end of a sentence about the file, without a full stop.
    OSError
        As the system reports it, ``FileNotFoundError`` among them.
    """
    descriptor = _open(path, nbytes)
    try:
        _check(descriptor, nbytes, checksum)
        return _header(descriptor, nbytes)
    finally:
        os.close(descriptor)


def load_block(path: Path, key: BlockKey, nbytes: int, checksum: str, *, copied: bool = False) -> KVBlock:
    """The block in a file, checked as by :func:`check_file` and against the key that was asked for.

    The tensors are views of a private mapping of the file: nothing is copied, the memory is the system's page cache,
    and a write into a tensor changes this one mapping and never the file. As long as one of them lives, the file has a
    shared lock, which keeps it from being removed. ``copied`` tensors are in memory of their own (pinned where CUDA is
    present) and hold nothing.

    Raises
    ------
    BankMismatchError
        The file holds the block of another key; names the first differing field.
    CorruptBlockError, OSError
        As :func:`check_file`; ``FileNotFoundError`` also where the file is about to be removed.
    """
    import torch  # see _bytes_of

    descriptor = _open(path, nbytes)
    try:
        # The mapping keeps a duplicate of the descriptor, and with it the lock.
        if not try_lock(descriptor, fcntl.LOCK_SH) or not os.fstat(descriptor).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it is about to be removed", str(path))
        whole: Any = None
        if copied:
            pinned = torch.cuda.is_available()
            whole = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) if pinned else _memory(nbytes)
        _check(descriptor, nbytes, checksum, None if whole is None else memoryview(whole.numpy()))
        header = _header(descriptor, nbytes)
        differing = header.key.differing(key)
        if differing:
            field = differing[0]
            raise BankMismatchError(
                f"The block file {str(path)!r} holds another block: its {field} is {getattr(header.key, field)!r}, "
                f"asked for is {getattr(key, field)!r}; run `qvpic bank verify` on the bank.",
                field=field,
            )
        if whole is None:
            whole = torch.frombuffer(mmap.mmap(descriptor, nbytes, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    finally:
        os.close(descriptor)
    start = len(header.encode())
    tensors = {}
    for name, (dtype, shape, begin, end) in header.layout().items():
        tensors[name] = whole[start + begin : start + end].view(getattr(torch, _TORCH[dtype])).view(shape)
    return _block(header, tensors)


def _memory(nbytes: int) -> torch.Tensor:
    import torch  # see _bytes_of

    from qvpic_rag import memory

    return memory.empty((nbytes,), dtype=torch.uint8)


def _block(header: BlockHeader, tensors: dict[str, torch.Tensor]) -> KVBlock:
    import torch  # see _bytes_of

    from qvpic_rag.packing import Packed

    def numbers(name: str) -> torch.Tensor | Packed:
        if header.key.storage == "native":
            return tensors[name]
        return Packed(
            tensors[f"{name}.codes"],
            tensors[f"{name}.scales"],
            tensors.get(f"{name}.lows"),
            torch.Size(header.shape),
            getattr(torch, header.key.dtype),
            name,
        )

    return KVBlock(
        numbers("keys"), numbers("values"), tensors["token_ids"], tensors["positions"], header.span, header.key
    )
