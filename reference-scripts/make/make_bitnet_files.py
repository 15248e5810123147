"""Makes TL1, TL2 and ARM I2_S files of one model from its (x86) I2_S file, as bitnet.cpp's converters lay them out.

    python make_bitnet_files.py MODEL-i2_s.gguf OUT-FOLDER [--kernels TL2.ini]

writes `arm.gguf`, and `tl1.gguf` and `tl2.gguf` each with the `.ini` of its kernels, which no GGUF file states. With
`--check MODEL-tl2.gguf` it makes that file's TL2 matrices again and compares all bytes but what fills them up.

Needs NumPy only: the gguf package does not know the types. Written from the formats' description in docs/reference/bitnet.md.
"""

import argparse
import configparser
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

I2_S, TL1, TL2 = 36, 38, 39
FILE_TYPE = {I2_S: 40, TL1: 38, TL2: 39}
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


@dataclass
class Entry:
    """A tensor of a GGUF file; `shape` is outermost first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes


class Reader:
    """Walks through the header of a GGUF file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little")

    def text(self) -> str:
        length = self.number(8)
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip_value(self, kind: int) -> None:
        if kind == 8:
            self.text()
        elif kind == 9:
            kind, count = self.number(4), self.number(8)
            for _ in range(count):
                self.skip_value(kind)
        else:
            self.at += SIZES[kind]


def stored_bytes(shape: tuple[int, ...], kind: int) -> int:
    count = int(np.prod(shape))
    if kind == TL2:
        return tl2_reserved(*shape) + 32
    return {0: 4 * count, 1: 2 * count, I2_S: count // 4 + 32, TL1: count // 4 + 32}[kind]


def read_gguf(path: Path) -> tuple[list[tuple[str, bytes]], list[Entry]]:
    """The keys, each with the bytes of its value, and the tensors."""
    data = path.read_bytes()
    reader = Reader(data)
    reader.at = 8
    tensor_count, key_count = reader.number(8), reader.number(8)
    keys = []
    for _ in range(key_count):
        name, start = reader.text(), reader.at
        reader.skip_value(reader.number(4))
        keys.append((name, data[start : reader.at]))
    described = []
    for _ in range(tensor_count):
        name = reader.text()
        shape = tuple(reversed([reader.number(8) for _ in range(reader.number(4))]))
        described.append((name, shape, reader.number(4), reader.number(8)))
    base = -(-reader.at // ALIGNMENT) * ALIGNMENT
    tensors = [
        Entry(name, shape, kind, data[base + at :][: stored_bytes(shape, kind)]) for name, shape, kind, at in described
    ]
    return keys, tensors


def write_gguf(path: Path, keys: list[tuple[str, bytes]], tensors: list[Entry]) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    header += b"".join(text(name) + value for name, value in keys)
    body = b""
    for entry in tensors:
        header += text(entry.name) + struct.pack("<I", len(entry.shape))
        header += b"".join(struct.pack("<Q", length) for length in reversed(entry.shape))
        header += struct.pack("<IQ", entry.kind, len(body))
        body += entry.data + bytes(-len(entry.data) % ALIGNMENT)
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + body)


def weights_of(entry: Entry) -> np.ndarray:
    """The weights -1, 0, 1 of an x86 I2_S matrix."""
    blocks = np.frombuffer(entry.data[:-32], np.uint8).reshape(-1, 1, 32)
    codes = blocks >> np.array([6, 4, 2, 0], np.uint8).reshape(1, 4, 1) & 3
    return codes.reshape(entry.shape).astype(np.int8) - 1


def arm(w: np.ndarray, _kernel: dict | None) -> bytes:
    """Blocks of 64 weights in 16 bytes."""
    codes = (w + 1).astype(np.uint8).reshape(-1, 4, 16)
    return (codes << np.array([6, 4, 2, 0], np.uint8).reshape(1, 4, 1)).sum(axis=1).astype(np.uint8).tobytes()


def pairs(w: np.ndarray) -> np.ndarray:
    """Bytes of four neighbours: two indices, the first one high."""
    index = (3 * w[..., 0::2] + w[..., 1::2] + 4).astype(np.uint8)
    return index[..., 0::2] << 4 | index[..., 1::2]


def tl1(w: np.ndarray, kernel: dict) -> bytes:
    """Tiles of BM rows; in them BK columns, bm rows, 256/bm columns, 16 rows, 4 columns."""
    (rows, columns), bm, bk, together = w.shape, kernel["bm"], kernel["bk"], kernel["bmm"]
    beside = 256 // together
    index = pairs(w)  # a byte for 4 columns
    shape = (rows // bm, bm // together, together // 16, 16, columns // bk, bk // beside, beside // 4)
    tile, part, sixteen, row, block, piece, four = range(7)
    order = (tile, block, part, piece, sixteen, four, row)
    return index.reshape(shape).transpose(order).tobytes()


# TL2 has the 32 rows of a group in this order.
ROWS = np.concatenate([np.arange(8) + start for start in (0, 16, 8, 24)])


def grouped(bytes_: np.ndarray, bm: int, block: int) -> np.ndarray:
    """[rows, bytes] in the order of tiles of `bm` rows, `block` bytes, 32 rows, 1 byte."""
    rows, width = bytes_.shape
    cut = bytes_.reshape(rows // bm, bm // 32, 32, width // block, block)[:, :, ROWS]
    return cut.transpose(0, 3, 1, 4, 2)


def tl2_reserved(rows: int, columns: int) -> int:
    """Bytes before the scale, by the formula of the fork's ggml, whose divisions truncate."""

    def divided(value: int, by: int) -> int:
        return int(value / by)

    size = divided(divided((columns - 256) * rows, 3) * 5, 8) + divided(divided(256 * rows, 2) * 4, 8)
    return -(-size // 32) * 32


def tl2(w: np.ndarray, kernel: dict) -> bytes:
    """Indices of triples, their signs, indices of pairs."""
    (rows, columns), bm, bk = w.shape, kernel["bm"], kernel["bk"]
    in_triples = columns - columns % bk
    sums = (w[:, :in_triples].reshape(rows, -1, 3) * np.array([9, 3, 1])).sum(axis=2)
    index = np.abs(sums).astype(np.uint8)
    indices = grouped(index[:, 0::2] << 4 | index[:, 1::2], bm, bk // 6)
    negative = (sums < 0).reshape(rows // bm, bm // 32, 2, 16, in_triples // bk, bk // 24, 8)
    bits = 15 - (2 * np.arange(8)[None, :] + np.arange(2)[:, None])  # [row / 16, triple]
    words = (negative.astype(np.uint32) << bits.astype(np.uint32)[None, None, :, None, None, None, :]).sum(axis=(2, 6))
    signs = words.transpose(0, 3, 1, 4, 2).astype("<u2")  # tile, block, 32 rows, 24 columns, lane
    packed = indices.tobytes() + signs.tobytes()
    if in_triples < columns:
        packed += grouped(pairs(w[:, in_triples:]), bm, 8).tobytes()
    return packed + bytes(tl2_reserved(rows, columns) - len(packed))


def read_kernels(path: Path) -> dict[tuple[int, int], dict]:
    config = configparser.ConfigParser()
    config.read(path)
    sections = [{key: int(value) for key, value in config[name].items()} for name in config.sections()]
    return {(section["m"], section["k"]): section for section in sections}


def write_kernels(path: Path, kernels: dict[tuple[int, int], dict]) -> None:
    config = configparser.ConfigParser()
    for index, kernel in enumerate(kernels.values()):
        config[f"Kernels_{index}"] = {key: str(kernel[key]) for key in ("m", "k", "bm", "bk", "bmm")}
    with path.open("w") as file:
        config.write(file)


def some_kernels(tensors: list[Entry], kind: int) -> dict[tuple[int, int], dict]:
    """Kernels that exercise every loop: several tiles where the matrix has room for them, and TL2's pairs."""
    kernels = {}
    for entry in tensors:
        if entry.kind == I2_S:
            rows, columns = entry.shape
            together = 32 if kind == TL2 or rows % 128 else 64
            kernels[entry.shape] = {
                "m": rows,
                "k": columns,
                "bm": 32 if rows % 64 else 64,
                "bk": 96 if kind == TL2 else 64,
                "bmm": together,
            }
    return kernels


def converted(tensors: list[Entry], kind: int, pack, kernels: dict) -> list[Entry]:
    return [
        Entry(entry.name, entry.shape, kind, pack(weights_of(entry), kernels.get(entry.shape)) + entry.data[-32:-28] + bytes(28))
        if entry.kind == I2_S
        else entry
        for entry in tensors
    ]


def check(tensors: list[Entry], theirs: list[Entry], kernels: dict) -> None:
    """Compares the TL2 matrices made of `tensors` with those of another file, all bytes but the last 28."""
    compared = 0
    for entry, other in zip(converted(tensors, TL2, tl2, kernels), theirs, strict=True):
        assert (entry.name, entry.shape, entry.kind) == (other.name, other.shape, other.kind), entry.name
        end = -28 if entry.kind == TL2 else None
        assert entry.data[:end] == other.data[:end], f"{entry.name} differs"
        compared += entry.kind == TL2
    print(f"{compared} TL2 matrices are the same byte for byte")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--kernels", type=Path, help="kernel_config.ini of TL2")
    parser.add_argument("--check", type=Path, help="a TL2 file of the same model")
    options = parser.parse_args()
    keys, tensors = read_gguf(options.model)
    if options.check:
        check(tensors, read_gguf(options.check)[1], read_kernels(options.kernels))
    if options.out is None:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    for name, kind, pack in (("arm", I2_S, arm), ("tl1", TL1, tl1), ("tl2", TL2, tl2)):
        kernels = {} if kind == I2_S else some_kernels(tensors, kind)
        if kind == TL2 and options.kernels:
            kernels = read_kernels(options.kernels)
        file_type = struct.pack("<II", 4, FILE_TYPE[kind])
        named = [(key, file_type if key == "general.file_type" else value) for key, value in keys]
        write_gguf(options.out / f"{name}.gguf", named, converted(tensors, kind, pack, kernels))
        if kernels:
            write_kernels(options.out / f"{name}.ini", kernels)


if __name__ == "__main__":
    main()
