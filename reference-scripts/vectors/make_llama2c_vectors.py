#!/usr/bin/env python3
"""Writes llama2.c's `tokenizer.bin` of a SentencePiece model, and what llama2.c's own `run.c` makes of hard texts.

llama2.c has no package, so the program is the user's: `--library` names a shared library with the functions
`build_tokenizer` and `encode` of `run.c`. They are called as they are; nothing of them is written again here.
Where two vectors differ from sentencepiece's, the difference is llama2.c's: it is documented in docs/reference/tokenizers.md.
"""

import argparse
import ctypes
import hashlib
import struct
from pathlib import Path

from sentencepiece import SentencePieceProcessor

import hard_texts

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MODEL = ROOT / "checkpoints" / "tiny-llama2" / "hf" / "tokenizer.model"
DEFAULT_OUT = ROOT / "tests" / "data" / "tokenizers" / "llama2c"


def write_tokenizer(model: SentencePieceProcessor, file: Path) -> None:
    """The length of the longest piece, then of each its score, its length and its text with plain spaces."""
    names = {model.bos_id(): "\n<s>\n", model.eos_id(): "\n</s>\n"}
    pieces = [names.get(id, model.id_to_piece(id)).replace("\u2581", " ").encode() for id in range(len(model))]
    content = struct.pack("<i", max(map(len, pieces)))
    for id, piece in enumerate(pieces):
        content += struct.pack("<fi", model.get_score(id), len(piece)) + piece
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


class Tokenizer(ctypes.Structure):
    """run.c's struct of that name."""

    _fields_ = [
        ("vocab", ctypes.c_void_p),
        ("vocab_scores", ctypes.c_void_p),
        ("sorted_vocab", ctypes.c_void_p),
        ("vocab_size", ctypes.c_int),
        ("max_token_length", ctypes.c_uint),
        ("byte_pieces", ctypes.c_ubyte * 512),
    ]


class RunC:
    """The user's run.c."""

    def __init__(self, library: Path, tokenizer: Path, vocab_size: int):
        self.library, self.tokenizer = ctypes.CDLL(str(library.resolve())), Tokenizer()
        self.library.build_tokenizer(ctypes.byref(self.tokenizer), str(tokenizer).encode(), vocab_size)

    def encode(self, text: str) -> list[int] | None:
        """None for texts that it cannot see whole, and those for which its quadratic merging takes minutes."""
        text = text.encode()
        if b"\0" in text or len(text) > 10_000:
            return None
        tokens, count = (ctypes.c_int * (len(text) + 3))(), ctypes.c_int()
        bos, eos = ctypes.c_int8(1), ctypes.c_int8(0)
        self.library.encode(ctypes.byref(self.tokenizer), text, bos, eos, tokens, ctypes.byref(count))
        return list(tokens[: count.value])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="SentencePiece model")
    parser.add_argument("--library", type=Path, help="shared library of run.c; without it only tokenizer.bin is written")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to")
    arguments = parser.parse_args()
    model, file = SentencePieceProcessor(model_file=str(arguments.model)), arguments.out / "tokenizer.bin"
    write_tokenizer(model, file)
    if arguments.library:
        run = RunC(arguments.library, file, len(model))
        producer = {"run.c": f"llama2.c, for the tokenizer {hashlib.sha256(file.read_bytes()).hexdigest()}"}
        hard_texts.update(arguments.out / "vectors.json", producer, {"run.c": run.encode})


if __name__ == "__main__":
    main()
