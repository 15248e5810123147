#!/usr/bin/env python3
"""Writes what the real SentencePiece makes of texts that are hard to tokenize: ids (BOS first) and back to text.

The Rust tokenizer is tested against this file; it is made again only when the model's tokenizer changes.
"""

import argparse
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

DEFAULT_MODEL = Path(__file__).resolve().parents[2] / "checkpoints" / "tiny-llama2"

STORY = (
    "Once upon a time, there was a little girl named Lily. She had a red ball and played with it every day.\n"
    'Tom saw her and asked, "What is wrong, Lily?" "I lost my red ball," said Lily.'
)

TEXTS = (
    # The corpus, whole and cut.
    STORY,
    STORY.upper(),
    STORY[::-1],
    "Once upon a time",
    "Once upon a tim",
    "Lily",
    '"Thank you!" said Lily.',
    "a",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethe the the the",
    "hahahahahahahahahahahahahahaha",
    "andandandandand",
    # Nothing, spaces, and where they stand.
    "",
    " ",
    "  ",
    "   ",
    " " * 17,
    " Lily",
    "  Lily",
    "Lily ",
    "Lily  ",
    "  Lily  went   home    . ",
    " a b  c   d    e",
    "\u2581",
    "Lily\u2581went\u2581\u2581home",
    "non\u00a0breaking\u3000ideographic\u2009thin\u200bzero",
    # Lines and control characters.
    "\n",
    "\n\n\n",
    "\t",
    "\t\t \t",
    "\r\n",
    "Lily\nwent\n\nhome\n",
    " \n \n ",
    "tab\tbetween\t\twords",
    "\x00",
    "Lily\x00went",
    "\x01\x02\x1b[31mred\x7f",
    "\ufeffbyte order mark",
    # Digits, signs, code.
    "0123456789",
    "2026-11-21 12:34:56.789",
    "3.14159 + 2.71828 = 5.85987; 1e-5, 0x0A, 1_000_000",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    'fn main() {\n    println!("{}", 1 << 3);\n}\n',
    "https://example.com/a?b=c&d=%20#e",
    # What looks like special tokens is text.
    "<s>",
    "</s>",
    "<unk>",
    "<s>Lily</s>",
    " <s> </s> <unk> ",
    "<0x0A>",
    "<0x41><0xFF>",
    "[INST] Lily [/INST]",
    # Scripts, in characters and in marks that combine.
    "naïve café, Zürich, Łódź, Ørsted, ñandú",
    "cafe\u0301 nai\u0308ve",
    "Привет, мир! Ежа съел уж.",
    "Γειά σου Κόσμε, ∑ π ≈ 3.14",
    "שלום עולם",
    "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界。",
    "こんにちは世界、カタカナ",
    "안녕하세요 세계",
    "ℌ𝔢𝔩𝔩𝔬 ﬁ ㎏ ① Å",
    "Ａｆｕｌｌｗｉｄｔｈ",
    # Emoji: with joiners, skin tones, flags, variation selectors.
    "🙂",
    "Lily 🙂 went 🏠!",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ☕️",
    "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "z͑ͫ̓ͪ̂ͫ̽͏̴̙a̴̶lgo",
    "\ufffd",
    "\U0010ffff",
)


def vectors(model: Path) -> dict:
    """The file's content, from `model`, a SentencePiece model file."""
    from sentencepiece import SentencePieceProcessor

    tokenizer = SentencePieceProcessor(model_file=str(model))
    rows = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_bos=True)
        rows.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids)})
    return {
        "producer": f"sentencepiece {version('sentencepiece')}",
        "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        "vectors": rows,
    }


def to_json(content: dict) -> str:
    """One line per vector, in ASCII: no editor can change what it does not show."""
    head = "".join(f"  {json.dumps(key)}: {json.dumps(content[key])},\n" for key in ("producer", "sha256"))
    rows = ",\n".join("    " + json.dumps(row) for row in content["vectors"])
    return f'{{\n{head}  "vectors": [\n{rows}\n  ]\n}}\n'


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, default=DEFAULT_MODEL / "hf" / "tokenizer.model", help="SentencePiece model"
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_MODEL / "tokenizer-vectors.json", help="file to write")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.out.write_text(to_json(vectors(arguments.model)), encoding="ascii")
    print(f"{arguments.out}: {len(TEXTS)} texts")


if __name__ == "__main__":
    main()
