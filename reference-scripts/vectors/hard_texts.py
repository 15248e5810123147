"""Texts that are hard to tokenize, and the file in which engines' answers are kept: one corpus for all scripts."""

import hashlib
import json
import struct
import sys
from pathlib import Path

import make_byte_level_vectors
import make_tokenizer_vectors

# Besides those of the two older scripts.
MORE = (
    "Hello",
    "Hello world",
    "Hello, World!\n",
    # Joiners, modifiers and flags without spaces between.
    "👨‍👩‍👧‍👦👩🏽‍💻🏳️‍🌈🇩🇪🇫🇷🇺🇸1️⃣",
    "a\u200db\u200cc\u2060d",
    # Runs of spaces and newlines, alone and before words.
    *(" " * count + "x" for count in (2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64)),
    *("\n" * count + "x" for count in (2, 3, 4, 8, 17)),
    "\t\tx\n\n\n\t x  \r\n \r\n",
    "x \n x  \n\n  x\n ",
    "\u00a0\u2003\u202f\u3000\u1680x",
    # Digits of several scripts in runs.
    *("7" * count for count in (1, 2, 3, 4, 5, 6, 7, 10)),
    "1,234,567.89 -12 +3 1e10 ½ ² ₃ Ⅷ ٤٥٦ १२३ 一二三 𝟘𝟙𝟚",
    # Every control character, and some that only look like nothing.
    "".join(chr(code) for code in range(1, 32)),
    "".join(chr(code) for code in range(127, 160)),
    "\u00ad\u200b\u200e\u202a\u2028\u2029\ufeff\ufffe\uffff",
    "\ue000\U000f0000\U0010fffd",
    # Special tokens' names, whole, cut and nested.
    "<s>[INST] <<SYS>>\nx\n<</SYS>> y [/INST] z </s><s>",
    "<unk><pad><mask><|endoftext|><|end_of_text|><|eot_id|><|im_start|><|im_end|>",
    "<s", "s>", "< s >", "<s><", "<|endoftext|", "|endoftext|>", "<<|endoftext|>>", "</s>s>",
    "<0x00><0xff><0xGG><0x0A",
    "\n<s>\n",
    # Contractions in many alphabets' quotes.
    "don't DON'T don’t 'tis 'S 's'S we'LL'll ''ll",
    # Words against each other without spaces.
    "helloHELLOHello123Hello_Hello-Hello.Hello",
    "ǅǆǇ ŉ ß ẞ İ ı ſ K Å",
    "ก็ ที่ น้ำ ญี่ปุ่น ကြက် ខ្មែរ ᄀ각ᆨ 각",
    "é e\u0301 \u0301e \u0301\u0302\u0303 क्षि ஸ்ரீ",
    "漢字仮名交じり文、한글과漢字،عربي-עברית",
    "$x^2$ \\frac{a}{b} ≤ ∞ → ⟨ψ|φ⟩ ∮ 𝔸 ℵ₀",
    "/* comment */ if (a<=b && !c) { return x->y[0]; } // ===>>>",
)

# 100 kB lines, by rule: the text repeated `count` times.
LONG = tuple(
    (text, 100_000 // len(text.encode()))
    for text in ("a", " ", "\n", "7", ".", "é", "漢", "🙂", "ab", "Lily went home. ", " \n", "a ", "'s", "<s>", "\u0301")
)

TEXTS = tuple(
    dict.fromkeys((*make_tokenizer_vectors.TEXTS, *make_byte_level_vectors.TEXTS, *MORE))
)


def digest(ids: list[int]) -> dict:
    """What is kept of a long list: how many ids, and SHA-256 of them as little-endian u32."""
    packed = struct.pack(f"<{len(ids)}I", *ids)
    return {"count": len(ids), "sha256": hashlib.sha256(packed).hexdigest()}


def update(file: Path, producer: dict, columns: dict) -> None:
    """Adds columns to `file`. Each is a function from a text to ids, or to None where the engine has no answer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(file.read_text()) if file.is_file() else {"producers": {}}
    old = {row["text"]: row for row in content.get("vectors", [])}
    old_long = {row["repeat"]: row for row in content.get("long", [])}
    rows = [old.get(text, {"text": text}) for text in TEXTS]
    long_rows = [old_long.get(text, {"repeat": text, "times": times}) for text, times in LONG]
    for name, encode in columns.items():
        for row in rows:
            answer = encode(row["text"])
            row |= {name: answer} if answer is not None else {}
        for row in long_rows:
            answer = encode(row["repeat"] * row["times"])
            row |= {name: digest(answer)} if answer is not None else {}
    answered = [row for row in long_rows if len(row) > 2]
    write(file, content["producers"] | producer, rows, answered)


def write(file: Path, producers: dict, rows: list[dict], long_rows: list[dict]) -> None:
    """One line per text, in ASCII: no editor can change what it does not show."""
    lists = [",\n".join("    " + json.dumps(row) for row in some) for some in (rows, long_rows)]
    text = '{{\n  "producers": {},\n  "vectors": [\n{}\n  ],\n  "long": [\n{}\n  ]\n}}\n'
    file.write_text(text.format(json.dumps(producers), *lists), encoding="ascii")
    print(f"{file}: {len(rows)} texts, {len(long_rows)} long ones", file=sys.stderr)
