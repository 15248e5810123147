#!/usr/bin/env python3
"""Writes what llama.cpp makes of hard texts with one vocabulary, under every name of `tokenizer.ggml.pre`.

What follows from a name besides its patterns is told apart, too: whether words that are pieces are merged, and whether BOS is
added where the file does not say.

The vocabulary is trained on the texts themselves without cutting them into words, so that its pieces reach over every
place where some pattern cuts: where two patterns differ, their ids do. Two runs, as of make_byte_level_vectors.py: the
first makes the vocabulary, the second, with `--llama-cpp`, encodes with it under each name that this llama.cpp knows.
"""

import argparse
import hashlib
import json
import struct
import sys
from importlib.metadata import version
from pathlib import Path

import hard_texts

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_OUT = ROOT / "tests" / "data" / "tokenizers" / "pre"
VOCABULARY = 3072
NAMES = (
    "default gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais trillion"
    " granite-docling exaone4 starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 llama-bpe llama3"
    " llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe glm4 chatglm-bpe jais-2 minicpm5 qwen2"
    " deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2 qwen35 tekken gpt-4o llama4 kanana2 talkie"
    " minimax-m2 granite-embed-multi-97m tiny_aya cohere2moe deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense"
    " joyai-llm hy_v4 spark2_5 youtu falcon poro-chat bloom gpt3-finnish viking chameleon superbpe bailingmoe bailingmoe2"
    " llada-moe seed-coder ufakzeka kimi-k2 afmoe laguna exaone-moe"
).split()
# Words that no merge makes: some names take them whole.
UNREACHED = ("HTTPServer", "ĠXMLHttpRequest", "ĠcamelCase")
TEXTS = (
    "I'm, you're, he's, we'll, they'd, I've, don't; I'M, YOU'RE, HE'S, WE'LL, THEY'D, I'VE, DON'T",
    "99 999 9999 99999 2020 6060 606060 1234567 12345678",
    "1 12 123 1234 12345 123456 ٣٤٥٦ ⅧⅨⅩ ½¾ 三四五六",
    "a\r\n\r\nb\r c\n \n\n  d",
    "x   \n\n  y\t\t z",
    "...!!!\n\n???\r\n /usr/bin//x\n/\n",
    "snake_case camelCase kebab-case __init__ HTTPServer XMLHttpRequest iPhone",
    "#include <stdio.h>\n\tfor (int i = 0; i < 10; ++i) { x[i] += 1; }\n",
    "e\u0301 é u\u0308 ü \u1112\u1161\u11ab 한 ÀÉÎ Ça vA DŽ Dž dž ʰ",
    " 漢字とカタカナ、ひらがな。한국어 中文abc123",
    "l'avion d'accord 'string' 'more' 'tea 'llama 'sit-in 'DAY İstanbul'da",
    "नमस्ते दुनिया স্বাগতম ไทยที่นี่ తెలుగు क्‍ष",
    " \u00a0 \u2009x\u00a0y\u3000z\u200bw \u0085v",
    "Hello , world . . . ? ! ; : 'tis $100 €50 £3 ~x^y`z|w <a>=b+c",
)


def texts() -> list[str]:
    """Those on which names are told apart. A piece `</s>` would be one that llama.cpp takes for a control piece."""
    return list(dict.fromkeys(text for text in (*TEXTS, *hard_texts.TEXTS) if text and "</s" not in text))


def write_vocabulary(out: Path) -> None:
    """Trains on whole texts, and writes a GGUF file without weights."""
    import gguf
    from gguf import TokenType
    from tokenizers import Tokenizer, pre_tokenizers, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False, max_token_length=8)
    tokenizer.train_from_iterator(20 * texts(), trainer)
    ids = tokenizer.get_vocab()
    tokens = [*sorted(ids, key=ids.get), *UNREACHED]
    writer = gguf.GGUFWriter(out / "vocabulary.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * len(tokens))
    writer.add_token_merges([" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {len(tokens)} pieces", file=sys.stderr)


def renamed(vocabulary: bytes, name: str) -> bytes:
    """The file with another value of tokenizer.ggml.pre. No tensors follow that would have to be aligned."""
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    start = vocabulary.index(key) + len(key)
    (length,) = struct.unpack_from("<Q", vocabulary, start)
    value = struct.pack("<Q", len(name)) + name.encode()
    return vocabulary[:start] + value + vocabulary[start + 8 + length :]


def digest(ids: list[int]) -> str:
    """The first 32 bits of SHA-256 of the ids as little-endian u32."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:8]


def with_llama_cpp(out: Path) -> None:
    """What llama.cpp makes of each text under each name; names that it does not know are left out."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    vocabulary, rows, unknown = (out / "vocabulary.gguf").read_bytes(), {}, []
    scratch = out / "renamed.gguf"
    for name in NAMES:
        scratch.write_bytes(renamed(vocabulary, name))
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(str(scratch).encode(), parameters)
        if not model:
            unknown.append(name)
            continue
        vocab = llama_cpp.llama_model_get_vocab(model)
        rows[name] = [digest(tokens(llama_cpp, vocab, text.encode())) for text in texts()]
        llama_cpp.llama_model_free(model)
    scratch.unlink()
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    producer = json.dumps({"llama.cpp": f"llama-cpp-python {version('llama-cpp-python')}"})
    text = f'{{\n  "producers": {producer},\n  "texts": {json.dumps(texts())},\n  "ids": {{\n{lines}\n  }}\n}}\n'
    (out / "vectors.json").write_text(text, encoding="ascii")
    print(f"{out}: {len(rows)} names, not known: {unknown}", file=sys.stderr)


def tokens(llama_cpp, vocabulary, text: bytes) -> list[int]:
    room = len(text) + 2
    ids = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), ids, room, True, True)
    assert count >= 0, text
    return list(ids[:count])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to")
    parser.add_argument("--llama-cpp", action="store_true", help="the second run; needs llama-cpp-python alone")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (with_llama_cpp if arguments.llama_cpp else write_vocabulary)(arguments.out)


if __name__ == "__main__":
    main()
