#!/usr/bin/env python3
"""Writes tests/data/tokenizers/settings.json: ids of transformers' AutoTokenizer for tokenizers with other settings.

usage: make_tokenizer_setting_vectors.py [OUT]

Each case is a folder with some files of one tokenizer, and settings files whose keys are changed. A case that xcheck
refuses has the text that its message must contain in `refused`.
"""

import json
import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import transformers

ROOT = Path(__file__).resolve().parents[2]
LLAMA = "checkpoints/tiny-llama2/hf"
QWEN2 = "tests/data/tokenizers/qwen2"
GPT2 = "tests/data/tokenizers/gpt2"
LLAMA3 = "tests/data/tokenizers/llama3"
CHAT = "<|im_start|>user\nHi there<|im_end|> <s>x</s>"
TEXT = " Hi</s> there</s>x 12345"
START, END = "<|im_start|>", "<|im_end|>"


def flags(content: str, special: bool = True, **more: bool) -> dict:
    plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": content, **plain, "special": special, **more}


DECODER = {"0": flags("<unk>"), "1": flags("<s>"), "2": flags("</s>")}
BOTH = DECODER | {"512": flags(START), "513": flags(END)}
STRIPS = DECODER | {"512": flags(START, rstrip=True, lstrip=True), "513": flags(END, False, lstrip=True)}
NORMAL = DECODER | {"512": flags("foo bar", False, normalized=True)}

# Name, keys of tokenizer_config.json (None: the key goes), other files, text.
LLAMA_CASES = [
    ("as it ships", {}, {}, CHAT),
    ("added_tokens.json", {}, {"added_tokens.json": {START: 512, END: 513}}, CHAT),
    ("added_tokens_decoder", {"added_tokens_decoder": BOTH}, {}, CHAT),
    ("flags of added_tokens_decoder", {"added_tokens_decoder": STRIPS}, {}, f"a {START} b {END} c"),
    ("a normal added token", {"added_tokens_decoder": NORMAL}, {}, "a foo bar b"),
    ("additional_special_tokens", {"additional_special_tokens": [START, END]}, {}, CHAT),
    ("extra_special_tokens", {"extra_special_tokens": [START, END]}, {}, CHAT),
    ("extra_special_tokens by name", {"extra_special_tokens": {"im": START}}, {}, CHAT),
    ("eos_token and pad_token", {"eos_token": END, "pad_token": "[PAD]"}, {}, CHAT + "[PAD]"),
    ("image_token", {"image_token": START}, {}, CHAT),
    ("special_tokens_map.json", {}, {"special_tokens_map.json": {"eos_token": END}}, CHAT),
    ("split_special_tokens", {"split_special_tokens": True}, {}, CHAT),
    ("EOS but no BOS", {"add_bos_token": False, "add_eos_token": True}, {}, TEXT),
    ("BOS and EOS", {"add_bos_token": True, "add_eos_token": True}, {}, TEXT),
    ("neither is mentioned", {"add_bos_token": None, "add_eos_token": None}, {}, TEXT),
    ("no prefix", {"add_prefix_space": False}, {}, TEXT),
    ("prefix", {"add_prefix_space": True}, {}, TEXT),
    ("legacy", {"legacy": True}, {}, TEXT),
    ("legacy is not mentioned", {"legacy": None}, {}, TEXT),
]
# A tokenizer.json as Llama 2's: a prefix before each part of a text, by a normalizer. LlamaTokenizer ignores it.
PREPENDS = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "pre_tokenizer": None,
}
CASES = [
    *({"name": name, "source": LLAMA, "files": [file], "config": config, "more": more, "text": text}
      for file in ["tokenizer.json", "tokenizer.model"]
      for name, config, more, text in LLAMA_CASES),
    *({"name": name, "source": LLAMA, "files": ["tokenizer.json"], "edit": PREPENDS, "config": config, "more": more, "text": TEXT}
      for name, config, more in [
          ("Llama 2's normalizer", {}, {}),
          ("the same without the class", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
          ("the same in a Mistral model", {}, {"config.json": {"model_type": "mistral"}}),
      ]),
    *({"name": name, "source": source, "files": ["vocab.json", "merges.txt"], "config": config, "more": more, "text": text}
      for name, source, config, more, text in [
          ("Qwen 2's two files", QWEN2, {}, {}, "a 12345 e\u0301 I'm\n\n x"),
          ("Qwen 2 by its model alone", QWEN2, {"tokenizer_class": None}, {"config.json": {"model_type": "qwen2"}}, "a 12345"),
          ("Qwen 2 with a prefix", QWEN2, {"add_prefix_space": True}, {}, "a 12345"),
          ("GPT-2's two files", GPT2, {}, {}, "a 12345 e\u0301 I'm\n\n x<|endoftext|>y"),
          ("GPT-2 with a prefix", GPT2, {"add_prefix_space": True}, {}, "a 12345"),
          ("GPT-2 with BOS", GPT2, {"add_bos_token": True}, {}, "a 12345"),
      ]),
    {"name": "Llama 3's tokenizer.json ignores add_bos_token", "source": LLAMA3, "files": ["tokenizer.json"],
     "config": {"add_bos_token": False}, "more": {}, "text": "a 12345"},
    {"name": "ids with a gap", "source": LLAMA, "files": ["tokenizer.json"], "config": {},
     "more": {"added_tokens.json": {START: 515}}, "text": CHAT, "refused": "added_tokens.json: '<|im_start|>'"},
]  # fmt: skip


def write_two_files(source: Path, folder: Path) -> None:
    """Writes the vocabulary and the merges of a tokenizer.json."""
    model = json.loads((source / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")


def folder_of(case: dict, folder: Path) -> None:
    source = ROOT / case["source"]
    if "vocab.json" in case["files"]:
        write_two_files(source, folder)
    else:
        shutil.copy(source / case["files"][0], folder)
    if "edit" in case:
        tokenizer = json.loads((folder / "tokenizer.json").read_text()) | case["edit"]
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((source / "tokenizer_config.json").read_text()) | case["config"]
    config = {key: value for key, value in config.items() if not (key in case["config"] and value is None)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, content in case["more"].items():
        (folder / name).write_text(json.dumps(content))


def ids(case: dict) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        folder_of(case, Path(folder))
        return transformers.AutoTokenizer.from_pretrained(folder)(case["text"])["input_ids"]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/data/tokenizers/settings.json"
    rows = ",\n".join("  " + json.dumps(case | {"ids": ids(case)}) for case in CASES)
    made_by = f"make_tokenizer_setting_vectors.py, transformers {transformers.__version__}, tokenizers {version('tokenizers')}"
    out.write_text(f'{{\n "made_by": {json.dumps(made_by)},\n "cases": [\n{rows}\n ]\n}}\n')


main()
