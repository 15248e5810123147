"""llama2.c's files: where the weights of each version stand, and its tokenizer.bin."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor

MAGIC = 0x616B3432  # "ak42" as a number
HEADER_BYTES = 256  # of versions 1 and 2
VERSIONS = (0, 1, 2)


@dataclass(frozen=True)
class Sizes:
    """The seven numbers of the header, in its order."""

    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocab_size: int
    seq_len: int

    def packed(self, vocab_sign: int = 1) -> bytes:
        """As they stand in the file."""
        return struct.pack(
            "<7i", self.dim, self.hidden_dim, self.n_layers, self.n_heads, self.n_kv_heads,
            vocab_sign * self.vocab_size, self.seq_len,
        )  # fmt: skip


def quantise(matrix: np.ndarray, group: int) -> bytes:
    """A matrix in groups of int8: all codes, then all scales. Rounded as numpy and torch do, halves to even."""
    groups = matrix.astype(np.float32).reshape(-1, group)
    scales = np.abs(groups).max(axis=1) / np.float32(127)
    with np.errstate(invalid="ignore"):
        codes = np.nan_to_num(np.round(groups / scales[:, None]))  # a group of zeros is 0 / 0
    return codes.astype(np.int8).tobytes() + scales.astype("<f4").tobytes()


def rope_tables(sizes: Sizes) -> list[np.ndarray]:
    """The cosines and sines of version 0 (positions x half a head each), which no program reads any more."""
    head = sizes.dim // sizes.n_heads
    frequencies = 1 / 10000 ** (np.arange(0, head, 2) / head)
    angles = np.outer(np.arange(sizes.seq_len), frequencies)
    return [np.cos(angles), np.sin(angles)]


def write_model(
    out: Path, version: int, sizes: Sizes, weights: dict[str, list[np.ndarray]], shared: bool, group: int
) -> None:
    """Writes a model. `weights` are lists by layer (one entry where there is one), under the names of `run.c`."""
    w = weights
    attention, feed_forward = [*w["wq"], *w["wk"], *w["wv"], *w["wo"]], [*w["w1"], *w["w2"], *w["w3"]]
    classifier = [] if shared else w["wcls"]
    if version == 0:
        start = sizes.packed(1 if shared else -1)
        parts = [
            *w["token_embedding"], *w["rms_att"], *attention, *w["rms_ffn"], *feed_forward, *w["rms_final"],
            *rope_tables(sizes), *classifier,
        ]  # fmt: skip
        blobs = [part.astype("<f4").tobytes() for part in parts]
    else:
        start = struct.pack("<Ii", MAGIC, version) + sizes.packed() + bytes([shared])
        start += struct.pack("<i", group) if version == 2 else b""
        start = start.ljust(HEADER_BYTES, b"\0")
        norms = [*w["rms_att"], *w["rms_ffn"], *w["rms_final"]]
        matrices = [*w["token_embedding"], *attention, *feed_forward, *classifier]
        stored = (lambda matrix: quantise(matrix, group)) if version == 2 else lambda m: m.astype("<f4").tobytes()
        blobs = [norm.astype("<f4").tobytes() for norm in norms] + [stored(matrix) for matrix in matrices]
    out.write_bytes(start + b"".join(blobs))


def write_tokenizer(out: Path, tokenizer: SentencePieceProcessor) -> None:
    """Writes tokenizer.bin: the longest piece's length, then score, length and bytes of each piece."""
    names = {tokenizer.bos_id(): "\n<s>\n", tokenizer.eos_id(): "\n</s>\n"}
    pieces = [
        (names.get(token) or tokenizer.IdToPiece(token).replace("▁", " ")).encode()
        for token in range(tokenizer.vocab_size())
    ]
    with out.open("wb") as file:
        file.write(struct.pack("<I", max(map(len, pieces))))
        for token, piece in enumerate(pieces):
            file.write(struct.pack("<fI", tokenizer.GetScore(token), len(piece)) + piece)
