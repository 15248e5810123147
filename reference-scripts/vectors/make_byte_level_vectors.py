#!/usr/bin/env python3
"""Makes small byte-level BPE tokenizers, and writes what real engines make of hard texts with them.

Two runs, since the two engines rarely live in one environment. The first trains a tokenizer of each kind on the
stories of tiny-llama2 with the `tokenizers` library, writes it as a Hugging Face directory and as a GGUF vocabulary,
and encodes with transformers. The second, with `--llama-cpp`, adds what llama.cpp makes of the GGUF vocabularies.
The vocabularies of tiny-llama2, which is of another kind, are encoded with likewise.
"""

import argparse
import json
import random
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_OUT = ROOT / "tests" / "data" / "tokenizers"
TINY_LLAMA2 = ROOT / "checkpoints" / "tiny-llama2"
VOCABULARY = 512
STORIES = 300
YEARS = " ".join(f"In {year}, {year % 7} of {year * 3}." for year in range(1990, 2030))

# The patterns of the models' own tokenizer.json; GPT-2's is in the library.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class Kind:
    """What a model family's tokenizer is made of."""

    pre: str
    special: tuple[str, ...]  # the first begins texts, the second ends them
    config: dict
    pattern: str | None = None
    single_digits: bool = False  # each is cut off before the pattern is looked for
    user_defined: tuple[str, ...] = ()
    nfc: bool = False
    adds_bos: bool = False
    ignore_merges: bool = False


KINDS = {
    "gpt2": Kind("gpt-2", ("<|endoftext|>", "<|endoftext|>"), {"tokenizer_class": "GPT2Tokenizer"}),
    "llama3": Kind(
        "llama-bpe",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eot_id|>|>"),
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        pattern=LLAMA3,
        adds_bos=True,
        ignore_merges=True,
    ),
    "qwen2": Kind(
        "qwen2",
        ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False},
        pattern=QWEN2,
        user_defined=("<tool_call>", "</tool_call>"),
        nfc=True,
    ),
    "smollm": Kind(
        "smollm",
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        {"tokenizer_class": "GPT2Tokenizer"},
        single_digits=True,
    ),
}

# Besides those of make_tokenizer_vectors.py.
TEXTS = (
    "I'm, you're, he's, we'll, they'd, I've, don't; I'M, YOU'RE, HE'S, WE'LL, THEY'D, I'VE, DON'T",
    "It'\u017f 'Re 'rE 're're '' 'x 's",
    "99 999 9999 99999 2020 6060 606060",
    "1 12 123 1234 12345 123456 ٣٤٥٦ ⅧⅨⅩ ½¾ 三四五六",
    "a\r\n\r\nb\r c\n \n\n  d",
    "x   \n\n  y\t\t z",
    "\u2028\u2029\u0085 \u00a0z\u3000",
    "   leading and trailing   ",
    "...!!!\n\n???\r\n",
    "snake_case camelCase kebab-case __init__",
    "e\u0301 é u\u0308 ü \u1112\u1161\u11ab 한",
    "<|endoftext|>",
    "Lily<|endoftext|>Tom<|endoftext|>",
    " <|endoftext|> \n <|endoftext|>",
    "<|begin_of_text|>Lily went home.<|eot_id|>",
    "<|eot_id|>|><|eot_id|>|>|>",
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<tool_call>\n{}\n</tool_call>",
    "<|im_start|<|im_end|>|>",
    "What is the answer to life, the universe, and everything?",
)


def special_tokens(kind: Kind) -> list[str]:
    return list(dict.fromkeys(kind.special))


def train(kind: Kind, corpus: list[str]):
    """A tokenizer of the `tokenizers` library: 256 bytes, merges, then the special tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE(ignore_merges=kind.ignore_merges))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind.pattern is None)
    if kind.pattern:
        split = pre_tokenizers.Split(Regex(kind.pattern), behavior="isolated")
        whole = pre_tokenizers.Sequence([split, whole])
    if kind.single_digits:
        whole = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    tokenizer.pre_tokenizer, tokenizer.decoder = whole, decoders.ByteLevel()
    tokenizer.normalizer = normalizers.NFC() if kind.nfc else None
    added = special_tokens(kind) + list(kind.user_defined)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special_tokens(kind)])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in kind.user_defined])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if kind.adds_bos:
        bos = kind.special[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


def write_gguf(tokenizer, kind: Kind, file: Path) -> None:
    """The vocabulary as llama.cpp's converter writes it; there are no weights."""
    import gguf
    from gguf import TokenType

    types = dict.fromkeys(special_tokens(kind), TokenType.CONTROL)
    types |= dict.fromkeys(kind.user_defined, TokenType.USER_DEFINED)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.get)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind.pre)
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(token, TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(ids[kind.special[0]])
    writer.add_eos_token_id(ids[kind.special[1]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_directory(kind: Kind, corpus: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(kind, corpus)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = kind.config | {"bos_token": kind.special[0], "eos_token": kind.special[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_gguf(tokenizer, kind, folder / "vocabulary.gguf")


def with_transformers(out: Path) -> None:
    """Trains, writes, and encodes as AutoTokenizer does."""
    import transformers
    from transformers import AutoTokenizer

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "make"))
    import make_tiny_llama2
    import make_tokenizer_vectors

    texts = [*make_tokenizer_vectors.TEXTS, *TEXTS]
    generator = random.Random(0)
    corpus = [make_tiny_llama2.tell_story(generator) for _ in range(STORIES)] + 10 * [YEARS] + texts
    for name in [*KINDS, "llama2"]:
        folder = out / name
        if name in KINDS:
            write_directory(KINDS[name], corpus, folder)
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = AutoTokenizer.from_pretrained(folder if name in KINDS else TINY_LLAMA2 / "hf")
        rows = [{"text": text, "transformers": tokenizer(text)["input_ids"]} for text in texts]
        for row in rows:
            row["decoded"] = tokenizer.decode(row["transformers"], skip_special_tokens=True)
        if name == "gpt2":
            both = AutoTokenizer.from_pretrained(folder, add_bos_token=True, add_eos_token=True)
            for row in rows:
                row["with_bos_and_eos"] = both(row["text"])["input_ids"]
        producer = f"transformers {transformers.__version__}, tokenizers {version('tokenizers')}"
        write_vectors(folder, {"transformers": producer}, rows)


def with_llama_cpp(out: Path) -> None:
    """Adds what llama.cpp makes of the texts, names of special tokens parsed, as its tools do."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    for name in [*KINDS, "llama2"]:
        folder = out / name
        file = folder / "vocabulary.gguf" if name in KINDS else TINY_LLAMA2 / "tiny-llama2-q8_0.gguf"
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        model = llama_cpp.llama_model_load_from_file(str(file).encode(), parameters)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        content = json.loads((folder / "vectors.json").read_text())
        for row in content["vectors"]:
            row["llama.cpp"] = llama_cpp_tokens(llama_cpp, vocabulary, row["text"].encode())
        producers = content["producers"] | {"llama.cpp": f"llama-cpp-python {version('llama-cpp-python')}"}
        write_vectors(folder, producers, content["vectors"])


def llama_cpp_tokens(llama_cpp, vocabulary, text: bytes) -> list[int]:
    add_special, parse_special = True, True
    room = len(text) + 2
    tokens = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), tokens, room, add_special, parse_special)
    assert count >= 0, text
    return list(tokens[:count])


def write_vectors(folder: Path, producers: dict, rows: list[dict]) -> None:
    """One line per vector, in ASCII: no editor can change what it does not show."""
    lines = ",\n".join("    " + json.dumps(row) for row in rows)
    text = f'{{\n  "producers": {json.dumps(producers)},\n  "vectors": [\n{lines}\n  ]\n}}\n'
    (folder / "vectors.json").write_text(text, encoding="ascii")
    print(f"{folder}: {len(rows)} texts", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to")
    parser.add_argument("--llama-cpp", action="store_true", help="the second run; needs llama-cpp-python alone")
    arguments = parser.parse_args()
    (with_llama_cpp if arguments.llama_cpp else with_transformers)(arguments.out)


if __name__ == "__main__":
    main()
