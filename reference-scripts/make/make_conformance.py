#!/usr/bin/env python3
"""Makes the dumps of `conformance/`, right ones and wrong ones, each with what xcheck says of it.

    python3 reference-scripts/make/make_conformance.py [--out conformance]

Values are those of real runs of transformers, whose dumps ship: the first tokens and the first layer, since nothing that follows
can have changed these. Needs nothing but Python, and writes the same bytes every time.
"""

import argparse
import copy
import json
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

from conformance_dumps import Array, Dump, npy, safetensors, write_archive, write_file, write_folder

ROOT = Path(__file__).resolve().parents[2]
JUDGE = ["audit", "{dump}", "--model", "tiny-llama3", "--layer", "0", "--no-report"]
TAPS = ["embed", "attn_norm", "q", "k", "v", "q_rope", "k_rope", "attn_weights", "attn_context", "block_out"]


# ---- real runs -------------------------------------------------------------------------------------------------


def read(path: str) -> Dump:
    """A dump that ships."""
    data = (ROOT / path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    manifest = json.loads(header["__metadata__"]["xcheck"])
    arrays = {}
    for row in manifest["tensors"]:
        key = row["file"].removesuffix(".npy")
        first, end = header[key]["data_offsets"]
        arrays[key] = Array(row["dtype"], row["shape"], data[start + first : start + end])
        row.pop("sha256", None)
    return Dump(manifest, arrays)


def first_layer(path: str) -> Dump:
    """Its taps of the first layer in the first pass."""
    dump = read(path)
    rows = dump.manifest["tensors"]
    first = [row for row in rows if row["tap"] in TAPS and row["pass"] == 0 and row.get("layer", 0) == 0]
    dump.manifest["tensors"] = first
    return dump.only(*TAPS)


def beginning(path: str, tokens: int) -> Dump:
    """The same, of the first tokens alone: causal attention has not seen more."""
    dump = first_layer(path)
    for tap in TAPS:
        array = dump.arrays[dump.row(tap)["file"].removesuffix(".npy")]
        if tap == "attn_weights":
            array = array.cut(1, 0, tokens).cut(2, 0, tokens)
        else:
            array = array.cut(0, 0, tokens)
        dump.put(tap, array)
    ids = dump.manifest["input"]["tokens"][:tokens]
    dump.manifest["input"]["tokens"] = ids
    dump.manifest["passes"] = [{"position": 0, "tokens": ids}]
    del dump.manifest["generated"]
    return dump


def two_of_a_batch() -> Dump:
    """Two sequences of a real padded batch of four, in which each has its last three rows: three tokens, and two behind padding."""
    dump = first_layer("tests/data/sequences/llama3-padded.safetensors")
    entries, longest, kept = (1, 3), 7, 3
    for tap in TAPS:
        array = dump.arrays[dump.row(tap)["file"].removesuffix(".npy")]
        token = 2 if tap == "attn_weights" else 1
        array = array.cut(token, longest - kept, longest)
        if tap == "attn_weights":
            array = array.cut(3, longest - kept, longest)
        dump.put(tap, array.cut(0, 1, 2).joined(0, [array.cut(0, 3, 4)]))
    sequences = dump.manifest["input"]["sequences"]
    dump.manifest["input"]["sequences"] = [{"tokens": sequences[entry]["tokens"]} for entry in entries]
    places = [entry * longest + at for entry in entries for at in range(longest - kept, longest)]
    whole = dump.manifest["passes"][0]
    owners = [whole["sequence"][place] for place in places]
    dump.manifest["passes"] = [
        {
            "tokens": [whole["tokens"][place] for place in places],
            "sequence": [None if owner is None else entries.index(owner) for owner in owners],
            "position": [whole["position"][place] for place in places],
        }
    ]
    return dump


# ---- right -------------------------------------------------------------------------------------------------------


def fused(plain: Dump) -> Dump:
    """q, k and v as parts of one array, by key-value heads: its query heads, its key head, its value head."""
    dump = plain.copy()
    q, k, v = (dump.arrays.pop(f"p0/l00/{tap}") for tap in "qkv")
    tokens, kv_heads, head_dim = k.shape
    group = q.shape[1] // kv_heads
    by_head = q.seen_as(tokens, kv_heads, group, head_dim)
    whole = by_head.joined(2, [k.seen_as(tokens, kv_heads, 1, head_dim), v.seen_as(tokens, kv_heads, 1, head_dim)])
    dump.arrays["p0/l00/qkv"] = whole.seen_as(tokens, kv_heads * (group + 2) * head_dim)
    cuts = {"q": (0, group), "k": (group, group + 1), "v": (group + 1, group + 2)}
    for tap, (start, end) in cuts.items():
        of = {"shape": whole.shape, "start": [0, 0, start, 0], "end": [tokens, kv_heads, end, head_dim]}
        dump.row(tap).update(file="p0/l00/qkv.npy", of=of)
    dump.manifest["version"] = 2
    return dump


def some_rows(plain: Dump) -> Dump:
    """Attention's weights of the second and the last query alone."""
    dump = plain.copy()
    weights = dump.arrays["p0/l00/attn_weights"]
    dump.put("attn_weights", weights.cut(1, 1, 2).joined(1, [weights.cut(1, 3, 4)]), rows=[1, 3])
    dump.manifest["version"] = 2
    return dump


def computed(halves: Dump) -> Dump:
    """Values in f32 that were rounded to bf16 before."""
    dump = halves.copy()
    for row in dump.manifest["tensors"]:
        dump.put(row["tap"], dump.arrays[row["file"].removesuffix(".npy")].widened(), computed="bf16")
    dump.manifest["version"] = 2
    return dump


def in_eight_bits(plain: Dump, dtype: str, by_row: bool) -> Dump:
    """Queries, keys and what attention makes in eight bits, under one scale, or one for each token."""
    dump = plain.copy()
    for tap in ("q", "k", "v", "attn_context", "block_out"):
        key = dump.row(tap)["file"].removesuffix(".npy")
        codes, scales = dump.arrays[key].eighth(dtype, by_row)
        if by_row:
            dump.arrays[f"{key}.scale"] = scales
        dump.put(tap, codes, scale=f"{key}.scale.npy" if by_row else struct.unpack("<f", scales.data)[0])
    dump.manifest["version"] = 2
    return dump


def two_passes(plain: Dump) -> Dump:
    """Three tokens in one pass, then one that was given."""
    dump, ids = Dump(copy.deepcopy(plain.manifest), {}), plain.manifest["input"]["tokens"]
    dump.manifest["input"]["decode"] = "forced"
    dump.manifest["passes"] = [{"position": 0, "tokens": ids[:3]}, {"position": 3, "tokens": ids[3:]}]
    dump.manifest["tensors"] = []
    for index, (start, end) in enumerate([(0, 3), (3, 4)]):
        for row in plain.manifest["tensors"]:
            array = plain.arrays[row["file"].removesuffix(".npy")]
            by_head = row["tap"] == "attn_weights"
            array = array.cut(1, start, end).cut(2, 0, end) if by_head else array.cut(0, start, end)
            key = f"p{index}{row['file'].removesuffix('.npy')[2:]}"
            dump.arrays[key] = array
            dump.manifest["tensors"].append(row | {"pass": index, "shape": array.shape, "file": f"{key}.npy"})
    return dump


def spelled(plain: Dump) -> Dump:
    """Names that need escapes, a key of the producer's own, types in the words of torch, a batch of one."""
    dump = plain.copy()
    dump.manifest["producer"].update(name='an "engine" \\ in Zürich\n', build={"flags": ["-O3"]})
    for row in dump.manifest["tensors"]:
        row["dtype"] = "torch.float32"
    dump.row("embed")["shape"] = [1, *dump.row("embed")["shape"]]
    embed = dump.arrays["p0/embed"]
    dump.arrays["p0/embed"] = embed.seen_as(1, *embed.shape)
    return dump


def other_axes(plain: Dump) -> Dump:
    """A transposed array."""
    dump = plain.copy()
    dump.put("attn_norm", dump.arrays["p0/l00/attn_norm"].transposed(), axes=["hidden", "token"])
    return dump


def split_axes(plain: Dump) -> Dump:
    """Query heads by their key-value heads, and these apart in what attention gives, too."""
    dump = plain.copy()
    tokens, kv_heads, head_dim = dump.arrays["p0/l00/k"].shape
    group = dump.arrays["p0/l00/q"].shape[1] // kv_heads
    for tap in ("q", "attn_context"):
        parts = dump.arrays[f"p0/l00/{tap}"].seen_as(tokens, kv_heads, group, head_dim)
        dump.put(tap, parts, axes=["token", "kv_head", "group", "head_dim"])
    dump.manifest["version"] = 2
    return dump


def write_by_layer(out: Path, plain: Dump) -> None:
    """Version 2: a folder of .safetensors files."""
    dump = plain.copy()
    files: dict[str, dict[str, Array]] = {}
    for row in dump.manifest["tensors"]:
        key, file = row["file"].removesuffix(".npy"), "l000.safetensors" if "layer" in row else "embed.safetensors"
        files.setdefault(file, {})[key] = dump.arrays[key]
        row["file"] = f"{file}#{key}"
    dump.manifest["version"] = 2
    write_folder(out, Dump(dump.manifest, {}))
    for file, arrays in files.items():
        (out / file).write_bytes(safetensors(arrays, None))


def make_right(out: Path) -> None:
    """Dumps that pass, each with what it is."""
    plain = beginning("checkpoints/tiny-llama3/dumps/transformers-f32.safetensors", 4)
    halves = beginning("checkpoints/tiny-llama3/dumps/transformers-bf16.safetensors", 4)
    writers = {
        "plain": ("a folder of .npy files", write_folder, plain),
        "plain.safetensors": ("the same as one file", write_file, plain),
        "plain.npz": ("the same as an archive", write_archive, plain),
        "bf16": ("bf16 in .npy, as <u2", write_folder, halves),
        "bf16.safetensors": ("bf16 in safetensors, as BF16", write_file, halves),
        "two-passes.safetensors": ("a pass that goes on where the one before stopped", write_file, two_passes(plain)),
        "spelled": ("escaped strings, unknown keys, torch's names of types, a batch of one", write_folder, spelled(plain)),
        "axes.safetensors": ("a transposed array, with axes", write_file, other_axes(plain)),
        "several.safetensors": ("version 2: two sequences, padded on the left", write_file, two_of_a_batch()),
        "rows.safetensors": ("version 2: an array of some rows", write_file, some_rows(plain)),
        "fused.safetensors": ("version 2: q, k and v as parts of one array", write_file, fused(plain)),
        "split.safetensors": ("version 2: axes that several stand for", write_file, split_axes(plain)),
        "computed.safetensors": ("version 2: f32 that was rounded to bf16 before", write_file, computed(halves)),
        "eighth": ("version 2: f8_e4m3 in .npy, as |u1, with a scale for each token", write_folder,
            in_eight_bits(plain, "f8_e4m3", True)),
        "eighth.safetensors": ("version 2: f8_e5m2 in safetensors, as F8_E5M2, with one scale", write_file,
            in_eight_bits(plain, "f8_e5m2", False)),
        "by-layer": ("version 2: a folder of .safetensors files", write_by_layer, plain),
    }
    expected = {}
    for name, (what, write, dump) in writers.items():
        write(out / name, dump)
        taps = len(dump.manifest["tensors"])
        says = ["pass  ", f"{taps} of {taps} taps compared"]
        expected[name] = {"what": what, "command": JUDGE, "exit": 0, "says": says}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


# ---- wrong -------------------------------------------------------------------------------------------------------


@dataclass
class Wrong:
    """Something that is refused, or fails: how it is made, and what is said of it."""

    what: str
    says: list[str]
    dump: Dump
    exit: int = 2
    command: list[str] = field(default_factory=lambda: JUDGE)
    file: bytes | None = None  # of a dump that is no folder


class Faults:
    """Wrong dumps by name, each one change away from a right one."""

    def __init__(self) -> None:
        self.plain = beginning("checkpoints/tiny-llama3/dumps/transformers-f32.safetensors", 2)
        self.base = self.plain.copy().only("embed", "attn_norm")
        self.batch = two_of_a_batch().only("embed", "attn_norm")
        self.found: dict[str, Wrong] = {}

    def manifest(self, name: str, what: str, says: str, change, base: Dump | None = None) -> None:
        """A manifest that is wrong, over arrays that are right."""
        dump = (base or self.base).copy()
        change(dump.manifest)
        self.found[name] = Wrong(what, [says], dump)

    def row(self, name: str, what: str, says: str, version: int = 1, **fields: object) -> None:
        """What the manifest says of attn_norm is wrong; None takes a field away."""

        def change(manifest: dict) -> None:
            manifest["version"] = version
            row = next(row for row in manifest["tensors"] if row["tap"] == "attn_norm")
            row.update(fields)
            for key in [key for key, value in row.items() if value is None]:
                del row[key]

        self.manifest(name, what, says, change)

    def npy(self, name: str, what: str, says: str, data: bytes | None, **fields: object) -> None:
        """The file of attn_norm is wrong."""
        self.row(name, what, says, **fields)
        dump = self.found[name].dump
        del dump.arrays["p0/l00/attn_norm"]
        if data is not None:
            dump.npy["p0/l00/attn_norm.npy"] = data


def wrong_manifests(faults: Faults) -> None:
    """What stands above the rows."""
    add = faults.manifest
    add("format", "another format", "invalid format 'a-dump', expected 'xcheck-dump'", lambda m: m.update(format="a-dump"))
    add("version", "a version that does not exist", "unsupported version 3", lambda m: m.update(version=3))
    add("no-architecture", "no model.architecture", "missing field `architecture`", lambda m: m["model"].pop("architecture"))
    add("no-producer", "no producer.name", "missing field `name`", lambda m: m["producer"].pop("name"))
    add("pairing", "a rope_pairing of no name", "unknown variant `halves`", lambda m: m["layout"].update(rope_pairing="halves"))
    add("no-tokens", "a pass that reads nothing", "passes[0] has no tokens", lambda m: m["passes"][0].update(tokens=[]))
    add("other-tokens", "passes that do not read the prompt", "the tokens of the passes differ from input.tokens",
        lambda m: m["input"].update(tokens=[7, 8]))  # fmt: skip
    add("position", "a pass that begins elsewhere", "passes[0] starts at position 1, expected 0",
        lambda m: m["passes"][0].update(position=1))  # fmt: skip
    add("temperature", "a temperature that is none", "has an invalid temperature",
        lambda m: m["passes"][0].update(temperature=0))  # fmt: skip
    add("twice", "a tap twice", "attn_norm, layer 0, pass 0 is listed twice",
        lambda m: m["tensors"].append(dict(m["tensors"][1], file="p0/embed.npy")))  # fmt: skip


def wrong_rows(faults: Faults) -> None:
    """What is said of an array."""
    add = faults.row
    add("tap", "a tap of no name", "no tap is named 'attn_nrom'", tap="attn_nrom")
    add("no-layer", "a layer that is missing", "tap 'attn_norm' needs one layer and one pass number", layer=None)
    add("odd-layer", "a layer too much", "tap 'final_norm' needs no layer and one pass number", tap="final_norm")
    add("high-layer", "a layer that no model has", "invalid layer 70000", layer=70000)
    add("no-pass", "a pass that there is not", "pass 1 does not exist", **{"pass": 1})
    add("dtype", "a type of no name", "unknown dtype 'f33', expected one of", dtype="f33")
    add("token-axis", "an axis of tokens that is not the pass's", "axis 'token' has length 3, expected 2", shape=[3, 64])
    add("rank", "too few axes", "does not match the axes [token, hidden]", shape=[192])
    add("axis", "an axis of no name", "unknown axis 'hiden'", axes=["token", "hiden"])
    add("axis-twice", "an axis twice", "duplicate axis 'token'", axes=["token", "token"])
    add("outside", "a file outside of the dump", "expected a relative path inside the dump", file="../p0/l00/attn_norm.npy")
    add("absolute", "an absolute path", "expected a relative path inside the dump", file="/p0/l00/attn_norm.npy")


def wrong_files(faults: Faults) -> None:
    """Files that are not what the manifest says."""
    norm, add = faults.base.arrays["p0/l00/attn_norm"], faults.npy
    add("no-file", "a file that is not there", "which the manifest lists", None)
    add("file-shape", "another shape in the file", "shape [96, 2], but the manifest states [2, 96]", npy(norm.seen_as(96, 2)))
    add("file-type", "another type in the file", "attn_norm.npy: dtype f64, but the manifest states f32", npy(norm.seen_as(2, 48), "<f8"), shape=[2, 48])
    half = norm.cut(1, 0, 48).seen_as(2, 96)  # any bits
    add("bf16-unsaid", "bf16 as <u2, and the manifest says f16", "attn_norm.npy: dtype u16, but the manifest states f16", npy(half, "<u2"), dtype="f16")
    add("bf16-as-f16", "<f2, and the manifest says bf16", "attn_norm.npy: dtype f16, but the manifest states bf16", npy(half, "<f2"), dtype="bf16")
    add("cut-off", "a file that breaks off", "attn_norm.npy: truncated: the data, [2, 96] of f32, at byte 128 needs 768 bytes",
        npy(norm, cut_off=4))  # fmt: skip
    add("no-npy", "a file that is no .npy", "at byte 0, expected a NumPy array", norm.data)
    plain = faults.base
    text = json.dumps(plain.manifest)
    whole = safetensors(plain.arrays, {"xcheck": text})
    files = {
        "cut-off.safetensors": ("a file that breaks off", "truncated: tensor 'p0/l00/attn_norm' at byte", whole[:-8]),
        "weights.safetensors": ("a file without a manifest", "no manifest, and no shipped map matches", safetensors(plain.arrays, None)),
        "no-json.safetensors": ("a manifest that is no JSON", "manifest: EOF while parsing", safetensors(plain.arrays, {"xcheck": text[:-2]})),
    }
    for name, (what, says, data) in files.items():
        faults.found[name.replace(".", "-")] = Wrong(what, [says], plain, file=data)
    hashed = plain.copy()
    hashed.row("attn_norm")["sha256"] = "0" * 64
    says = ["damaged data", "the manifest states 0000"]
    faults.found["sha256"] = Wrong("an array of another content", says, hashed, command=["inspect", "{dump}"])


def wrong_parts(faults: Faults) -> None:
    """Version 2: rows and parts of arrays."""
    add, ascending = faults.row, "expected ascending row numbers below 2"
    add("rows-descending", "rows in descending order", ascending, 2, rows=[1, 0])
    add("rows-beyond", "a row that the pass has not", ascending, 2, rows=[0, 2])
    add("rows-version", "rows in version 1", "axis 'token' has length 1, expected 2", 1, rows=[1], shape=[1, 96])
    add("rows-length", "an array of other rows", "axis 'token' has length 2, expected 1", 2, rows=[1])
    add("of-beyond", "a part that is none", "is outside shape [2, 96]", 2, shape=[2, 96],
        of={"shape": [2, 96], "start": [0, 1], "end": [2, 97]})  # fmt: skip
    add("of-empty", "a part of nothing", "is outside shape [2, 96]", 2, of={"shape": [2, 96], "start": [0, 96]})
    add("of-axes", "a cut of fewer axes", "is outside shape [2, 96]", 2, of={"shape": [2, 96], "start": [0]})
    add("of-shape", "a cut of another shape", '"of" selects shape [2, 48], but "shape" is [2, 96]', 2,
        of={"shape": [2, 96], "end": [2, 48]})  # fmt: skip
    add("of-elements", "a cut of another array", 'cannot be reshaped to [2, 95], the shape in "of"', 2, shape=[2, 95],
        of={"shape": [2, 95]})  # fmt: skip
    codes, _ = faults.base.arrays["p0/l00/attn_norm"].eighth("f8_e4m3")
    eighth = {"version": 2, "dtype": "f8_e4m3"}
    positive = "expected a positive number"
    faults.npy("f8-version", "eight bits in version 1, where their scale has no meaning", "f8_e4m3 needs version 2", npy(codes),
        version=1, dtype="f8_e4m3", scale=0.5)  # fmt: skip
    faults.npy("scale-zero", "a scale that nothing was divided by", f"invalid scale 0, {positive}", npy(codes), **eighth, scale=0)
    faults.npy("scale-negative", "a negative scale", f"invalid scale -0.5, {positive}", npy(codes), **eighth, scale=-0.5)
    faults.npy("scale-file", "a file of scales that is not there", "which the manifest lists", npy(codes),
        **eighth, scale="p0/l00/attn_norm.scale.npy")  # fmt: skip
    faults.npy("scale-outside", "a file of scales outside of the dump", "expected a relative path inside the dump", npy(codes),
        **eighth, scale="../attn_norm.scale.npy")  # fmt: skip
    scales = {"scale-shape": ("scales of another shape", "scales of shape [1, 2] cannot be broadcast to values of shape [2, 96]", [1, 2], 1.0),
              "scale-nan": ("a scale that is no number", f"invalid scale NaN, {positive}", [2, 1], float("nan"))}  # fmt: skip
    for name, (what, says, shape, last) in scales.items():
        faults.npy(name, what, says, npy(codes), **eighth, scale="p0/l00/attn_norm.scale.npy")
        faults.found[name].dump.arrays["p0/l00/attn_norm.scale"] = Array("f32", shape, struct.pack("<2f", 1.0, last))
    add("scale-f32", "a scale of f32", "\"scale\" needs f8_e4m3 or f8_e5m2 values, but these are f32", 2, scale=2.0)
    add("computed", "a type that is none to compute in", "invalid \"computed\" 'int8'", 2, computed="int8")


def wrong_sequences(faults: Faults) -> None:
    """Version 2: several sequences."""

    def add(name: str, what: str, says: str, change) -> None:
        faults.manifest(name, what, says, change, faults.batch)

    def of_pass(key: str, value: object):
        return lambda m: m["passes"][0].update({key: value})

    add("sequence", "a sequence that there is not", "invalid sequence 2", of_pass("sequence", [0, 0, 0, None, 2, 2]))
    add("positions", "positions with a hole", "expected consecutive positions", of_pass("position", [0, 1, 3, 0, 0, 1]))
    add("first-position", "a sequence that begins elsewhere", "sequence 1: passes[0] starts at position 1, expected 0",
        of_pass("position", [0, 1, 2, 0, 1, 2]))  # fmt: skip
    add("sequence-length", "fewer entries than rows", "6 rows, but \"sequence\" has 5 entries and \"position\" 6",
        of_pass("sequence", [0, 0, 0, None, 1]))  # fmt: skip
    add("sequence-tokens", "a sequence that reads another's tokens", "the tokens of the passes differ from input.tokens",
        of_pass("sequence", [1, 1, 1, None, 0, 0]))  # fmt: skip
    add("no-sequences", "no sequence at all", "input.sequences is empty", lambda m: m["input"].update(sequences=[]))
    add("sequence-names", "a name that is another's number", "duplicate sequence name '1' of input.sequences[0] and [1]",
        lambda m: m["input"]["sequences"][0].update(name="1") or m["input"]["sequences"][1].pop("name", None))  # fmt: skip
    add("no-input", "neither tokens nor sequences", "input has neither tokens nor sequences", lambda m: m["input"].clear())
    add("batch", "a batch of other rows", "expected 6 rows", lambda m: m["tensors"][0].update(shape=[2, 4, 96]))
    add("across", "a sequence in several entries", "is spread over several entries", lambda m: m["tensors"][0].update(shape=[3, 2, 96]))
    add("generated", "an array of continuations", "in input.sequences",
        lambda m: m["tensors"].append({"tap": "generated", "dtype": "u32", "shape": [1], "file": "p0/embed.npy"}))  # fmt: skip


def wrong_engines(faults: Faults) -> None:
    """Dumps that are well formed, of an engine that is wrong: the first operation that is has a name."""

    def add(name: str, what: str, says: list[str], change) -> None:
        dump = faults.plain.copy()
        change(dump)
        faults.found[name] = Wrong(what, says, dump, 1)

    def scaled(dump: Dump) -> None:
        for row in dump.manifest["tensors"]:
            key = row["file"].removesuffix(".npy")
            if row["tap"] == "q":
                dump.arrays[key] = dump.arrays[key].times(1.01)

    def exchanged(dump: Dump) -> None:
        k, v = dump.row("k"), dump.row("v")
        k["file"], v["file"] = v["file"], k["file"]

    def of_no_number(dump: Dump) -> None:
        norm = dump.arrays["p0/l00/attn_norm"]
        dump.arrays["p0/l00/attn_norm"] = Array("f32", norm.shape, b"\0\0\xc0\x7f" + norm.data[4:])

    add("q-scaled", "queries that are 1 % too large", ["FAIL", "q, layer 0, pass 0"], scaled)
    add("k-for-v", "keys written as values", ["FAIL", "k, layer 0, pass 0"], exchanged)
    add("nan", "a value that is no number", ["FAIL", "attn_norm, layer 0, pass 0"], of_no_number)


def make_wrong(out: Path) -> None:
    """Each in a folder with what is said of it."""
    faults = Faults()
    for make in (wrong_manifests, wrong_rows, wrong_files, wrong_parts, wrong_sequences, wrong_engines):
        make(faults)
    for name, wrong in faults.found.items():
        folder = out / name
        folder.mkdir(parents=True)
        if wrong.file is not None:
            (folder / "dump.safetensors").write_bytes(wrong.file)
        elif wrong.exit == 1:
            write_file(folder / "dump.safetensors", wrong.dump)
        else:
            write_folder(folder / "dump", wrong.dump)
        expected = {"what": wrong.what, "command": wrong.command, "exit": wrong.exit, "says": wrong.says}
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "conformance", help="default: conformance")
    out = parser.parse_args().out
    for name, make in {"right": make_right, "wrong": make_wrong}.items():
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).mkdir(parents=True)
        make(out / name)


if __name__ == "__main__":
    main()
