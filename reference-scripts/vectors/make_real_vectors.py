#!/usr/bin/env python3
"""Writes what real engines make of hard texts with real vocabularies, and with the small ones that ship.

The real ones are those of `get_vocabularies.py`: Llama 2's, GPT-2's, Llama 3's and Qwen 2's. Each run adds the columns
of one engine, since engines rarely live in one environment:

    make_real_vectors.py llama.cpp        # needs llama-cpp-python alone
    make_real_vectors.py sentencepiece    # Llama 2's model is put together from the GGUF vocabulary
    make_real_vectors.py tokenizers       # what transformers runs; tokenizer.json is put together likewise
    make_real_vectors.py tiktoken         # GPT-2's encoding from the merges of the GGUF vocabulary

A column named "... plain" is of texts in which names of special tokens are text.
"""

import argparse
from importlib.metadata import version
from pathlib import Path

import hard_texts
import make_byte_level_vectors as small

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "tokenizers"
VOCABULARIES = ROOT / "tests" / "data" / "vocabularies"
REAL = {"llama-spm": "real-llama2", "gpt-2": "real-gpt2", "llama-bpe": "real-llama3", "qwen2": "real-qwen2"}
PATTERNS = {"gpt-2": None, "llama-bpe": small.LLAMA3, "qwen2": small.QWEN2}
SHIPPED = {
    "llama2": ROOT / "checkpoints" / "tiny-llama2" / "tiny-llama2-q8_0.gguf",
    "gpt2": DATA / "gpt2" / "vocabulary.gguf",
    "llama3": DATA / "llama3" / "vocabulary.gguf",
    "qwen2": DATA / "qwen2" / "vocabulary.gguf",
}


def real_file(name: str) -> Path:
    return VOCABULARIES / f"ggml-vocab-{name}.gguf"


def out(name: str) -> Path:
    return DATA / name / "hard.json"


def with_llama_cpp() -> None:
    """llama.cpp's own tokenizer. BOS is added where the vocabulary asks for it."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    producer = {"llama.cpp": f"llama-cpp-python {version('llama-cpp-python')}"}
    for name, file in {**{REAL[name]: real_file(name) for name in REAL}, **SHIPPED}.items():
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(str(file).encode(), parameters)
        vocabulary = llama_cpp.llama_model_get_vocab(model)

        def encode(text: str, parse: bool) -> list[int]:
            data = text.encode()
            tokens = (llama_cpp.llama_token * (len(data) + 2))()
            count = llama_cpp.llama_tokenize(vocabulary, data, len(data), tokens, len(tokens), True, parse)
            assert count >= 0, text
            return list(tokens[:count])

        columns = {"llama.cpp": lambda text: encode(text, True), "llama.cpp plain": lambda text: encode(text, False)}
        hard_texts.update(out(name), producer, columns)


def vocabulary(name: str) -> dict:
    """The arrays of a GGUF vocabulary that make a tokenizer."""
    from gguf import GGUFReader

    fields = GGUFReader(real_file(name)).fields
    names = ("tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "unknown_token_id")
    found = {key: fields.get(f"tokenizer.ggml.{key}") for key in names}
    return {key: field.contents() for key, field in found.items() if field is not None}


def with_sentencepiece() -> None:
    """The real library on the small model that ships, and on Llama 2's vocabulary as Meta's model file has it."""
    from sentencepiece import SentencePieceProcessor
    from sentencepiece import sentencepiece_model_pb2 as proto

    content = vocabulary("llama-spm")
    model = proto.ModelProto()
    for piece, score, kind in zip(content["tokens"], content["scores"], content["token_type"], strict=True):
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    model.trainer_spec.vocab_size, model.trainer_spec.byte_fallback = len(model.pieces), True
    model.normalizer_spec.name, model.normalizer_spec.remove_extra_whitespaces = "identity", False
    real = model.SerializeToString()
    (VOCABULARIES / "tokenizer.model").write_bytes(real)
    ships = (ROOT / "checkpoints" / "tiny-llama2" / "hf" / "tokenizer.model").read_bytes()
    producer = {"sentencepiece": f"sentencepiece {version('sentencepiece')}"}
    for name, data in {"real-llama2": real, "llama2": ships}.items():
        processor = SentencePieceProcessor(model_proto=data)
        columns = {"sentencepiece plain": lambda text: processor.encode(text, add_bos=True)}
        hard_texts.update(out(name), producer, columns)


def byte_level(name: str):
    """A tokenizer of the `tokenizers` library, put together as the model's own tokenizer.json is."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    content, pattern = vocabulary(name), PATTERNS[name]
    ids = {token: id for id, token in enumerate(content["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in content["merges"]]
    tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=name == "llama-bpe"))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        whole = pre_tokenizers.Sequence([split, whole])
    tokenizer.pre_tokenizer, tokenizer.decoder = whole, decoders.ByteLevel()
    special = [token for token, kind in zip(content["tokens"], content["token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer, content["bos_token_id"] if name == "llama-bpe" else None


def with_tokenizers() -> None:
    """The library that transformers runs. Qwen's NFC is left out: llama.cpp's vocabulary has none."""
    producer = {"tokenizers": f"tokenizers {version('tokenizers')}"}
    for name in PATTERNS:
        tokenizer, bos = byte_level(name)
        before = [] if bos is None else [bos]

        def encode(text: str, parse: bool) -> list[int]:
            tokenizer.encode_special_tokens = not parse
            return before + tokenizer.encode(text, add_special_tokens=False).ids

        columns = {"tokenizers": lambda text: encode(text, True), "tokenizers plain": lambda text: encode(text, False)}
        hard_texts.update(out(REAL[name]), producer, columns)


def with_tiktoken() -> None:
    """GPT-2's encoding as tiktoken defines it, which is r50k_base; its ranks are the order of the merges."""
    import tiktoken

    # As GPT-2's encoder.py numbers them: printable bytes stand for themselves, the others for U+0100 and so on.
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    tokens = vocabulary("gpt-2")["tokens"]
    ranks = {bytes(byte_of[c] for c in token): id for id, token in enumerate(tokens) if token != "<|endoftext|>"}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )
    columns = {
        "tiktoken": lambda text: encoding.encode(text, allowed_special="all"),
        "tiktoken plain": lambda text: encoding.encode(text, disallowed_special=()),
    }
    producer = {"tiktoken": f"tiktoken {version('tiktoken')}"}
    hard_texts.update(out("real-gpt2"), producer, columns)


ENGINES = {
    "llama.cpp": with_llama_cpp,
    "sentencepiece": with_sentencepiece,
    "tokenizers": with_tokenizers,
    "tiktoken": with_tiktoken,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    ENGINES[parser.parse_args().engine]()


if __name__ == "__main__":
    main()
