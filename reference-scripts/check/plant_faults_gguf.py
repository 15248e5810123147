#!/usr/bin/env python3
"""Makes copies of a Llama GGUF file with exactly one fault each, and finds out where each fault must show first.

Every copy differs from the file in one number (a key, one code, one bit of a block's scale, one element of a norm) or
in two tensors that changed places. faults.json beside them says, for each, the tap and the layer at which the first
wrong value must show. That is not only what the data flow says: llama.cpp runs the sound file and the faulty one, and
the script ends with status 1 unless the first tensor in which the two runs differ is that one. How much they differ
there is in faults.json too: a fault that changes a value by as little as rounding does would be no fair test.

Where a column is chosen, it is the one whose input is largest in the sound run, so that the change is not rounded away
together with an input near zero.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf
import numpy as np
from make_real_dumps import read, run_llama_cpp

BLOCK = 32  # elements of a block, for both types below
Q4_1_BYTES, Q4_1_CODES = 20, 4  # f16 scale, f16 minimum, then 16 bytes: elements 0 to 15 low, 16 to 31 high
Q8_0_BYTES, Q8_0_CODES = 34, 2  # f16 scale, then a signed byte each


class Sound:
    """The run of the sound file: what its products take in."""

    def __init__(self, dump: Path):
        self.manifest, self.records = read(dump)

    def largest_column(self, tap: str, layer: int | None) -> int:
        """The column whose entry in the prompt's pass is largest in magnitude."""
        (values,) = (r.values for r in self.records if (r.tap, r.layer, r.pass_index) == (tap, layer, 0))
        return int(np.abs(values).max(axis=0).argmax())


class File:
    """A GGUF file that is changed in place."""

    def __init__(self, path: Path):
        self.reader = gguf.GGUFReader(path, "r+")

    def set_key(self, key: str, value: float) -> str:
        field = self.reader.get_field(key)
        if field is None:
            raise SystemExit(f"error: the file has no key {key}")
        number = field.parts[field.data[0]]
        was = float(number[0])
        number[0] = value
        return f"{key} is {number[0]:.8g} instead of {was:.8g}"

    def tensor(self, name: str, kind: str | None = None) -> np.ndarray:
        (tensor,) = (tensor for tensor in self.reader.tensors if tensor.name == name)
        if kind and tensor.tensor_type.name != kind:
            raise SystemExit(f"error: {name} is {tensor.tensor_type.name}, this fault is made for {kind}")
        return tensor.data

    def swap(self, one: str, other: str) -> str:
        a, b = self.tensor(one), self.tensor(other)
        a[:], b[:] = b.copy(), a.copy()
        return f"{one} and {other} changed places"

    def flip_q4_1_code(self, name: str, row: int, column: int, mask: int) -> str:
        block, element = divmod(column, BLOCK)
        byte = block * Q4_1_BYTES + Q4_1_CODES + element % 16
        shift = 4 * (element // 16)
        matrix = self.tensor(name, "Q4_1")
        was = matrix[row, byte] >> shift & 15
        matrix[row, byte] ^= mask << shift
        return f"{name}, row {row}, column {column}: the code is {was ^ mask} instead of {was}"

    def flip_q4_1_scale(self, name: str, row: int, column: int, bit: int) -> str:
        place = slice(column // BLOCK * Q4_1_BYTES, column // BLOCK * Q4_1_BYTES + 2)
        matrix = self.tensor(name, "Q4_1")
        scale = matrix[row, place].view("<u2")
        was = scale.view("<f2")[0].copy()
        scale ^= np.uint16(1 << bit)
        now = scale.view("<f2")[0]
        return f"{name}, row {row}, block {column // BLOCK}: the scale is {now:.6g} instead of {was:.6g} (bit {bit})"

    def add_to_q8_0_code(self, name: str, row: int, column: int, step: int) -> str:
        block, element = divmod(column, BLOCK)
        codes = self.tensor(name, "Q8_0").view(np.int8)
        byte = block * Q8_0_BYTES + Q8_0_CODES + element
        was = int(codes[row, byte])
        codes[row, byte] = was + step if was < 0 else was - step  # towards zero: never past 127
        return f"{name}, row {row}, column {column}: the code is {codes[row, byte]} instead of {was}"

    def scale_element(self, name: str, index: int, factor: float) -> str:
        vector = self.tensor(name, "F32")
        was = float(vector[index])
        vector[index] *= np.float32(factor)
        return f"{name}, element {index}: {vector[index]:.6g} instead of {was:.6g}"

    def save(self) -> None:
        self.reader.data.flush()


@dataclass(frozen=True)
class Fault:
    """What is changed, and where the first wrong value must show."""

    name: str
    plant: Callable[[File, Sound], str]
    tap: str
    layer: int | None


EPS, BASE = "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"


def code_of_a_token_read(file: File, sound: Sound) -> str:
    """In the row of the prompt's first token."""
    return file.add_to_q8_0_code("token_embd.weight", sound.manifest["input"]["tokens"][0], 33, 1)


def code_of_a_token_not_read(file: File, sound: Sound) -> str:
    """In a row that the run never looks up: of the tied tensor's two uses only the head is wrong, in one logit."""
    looked_up = {token for one in sound.manifest["passes"] for token in one["tokens"]}
    row = next(token for token in range(1000, len(file.tensor("token_embd.weight"))) if token not in looked_up)
    return file.add_to_q8_0_code("token_embd.weight", row, sound.largest_column("final_norm", None), 4)


def base_is_a_thousandth_off(file: File, _: Sound) -> str:
    return file.set_key(BASE, float(file.reader.get_field(BASE).contents()) * 0.999)


def element(vector: str, index: int) -> Callable[[File, Sound], str]:
    return lambda file, _: file.scale_element(vector, index, 1.01)


def code(matrix: str, row: int, mask: int, tap: str, layer: int) -> Callable[[File, Sound], str]:
    return lambda file, sound: file.flip_q4_1_code(matrix, row, sound.largest_column(tap, layer), mask)


def scale(matrix: str, row: int, bit: int, tap: str, layer: int) -> Callable[[File, Sound], str]:
    return lambda file, sound: file.flip_q4_1_scale(matrix, row, sound.largest_column(tap, layer), bit)


FAULTS = [
    # Epsilon of other models' norms: Llama 2's 1e-6 stands in many a converter, 1e-8 is that of the paper's own code.
    Fault("eps-1e-6", lambda file, _: file.set_key(EPS, 1e-6), "attn_norm", 0),
    Fault("eps-1e-8", lambda file, _: file.set_key(EPS, 1e-8), "attn_norm", 0),
    Fault("rope-base-0.1-percent", base_is_a_thousandth_off, "q_rope", 0),
    Fault("q-of-two-layers-swapped", lambda file, _: file.swap("blk.3.attn_q.weight", "blk.4.attn_q.weight"), "q", 3),
    Fault("one-code-ffn_up", code("blk.7.ffn_up.weight", 100, 8, "ffn_norm", 7), "ffn_up", 7),
    # The smallest change that the format has: one code to its neighbour.
    Fault("one-code-one-step-attn_k", code("blk.12.attn_k.weight", 40, 1, "attn_norm", 12), "k", 12),
    Fault("one-code-last-ffn_down", code("blk.29.ffn_down.weight", 200, 8, "ffn_act", 29), "ffn_out", 29),
    Fault("one-scale-bit-attn_output", scale("blk.15.attn_output.weight", 300, 9, "attn_context", 15), "attn_out", 15),
    # A scale's last bit: a thousandth of one block in one row.
    Fault("last-scale-bit-ffn_gate", scale("blk.20.ffn_gate.weight", 500, 0, "ffn_norm", 20), "ffn_gate", 20),
    Fault("norm-element-1-percent", element("blk.11.ffn_norm.weight", 77), "ffn_norm", 11),
    Fault("final-norm-element-1-percent", element("output_norm.weight", 5), "final_norm", None),
    # Embedding and head are one tensor: a row of a token that is read, and one of a token that is not.
    Fault("one-code-embedding", code_of_a_token_read, "embed", None),
    Fault("one-code-head", code_of_a_token_not_read, "logits", None),
]


@dataclass(frozen=True)
class Planted:
    """A row of faults.json."""

    fault: str
    file: str
    what: str
    tap: str
    layer: int | None
    llama_cpp_differs_by: float  # the largest difference of the two runs at that tap and layer, in the first pass
    of_values_up_to: float


def run_again(build: Path, model: Path, sound: Sound, out: Path) -> None:
    """The sound run's tokens, passes and cache, with another model."""
    manifest = sound.manifest
    tokens = ",".join(map(str, manifest["input"]["tokens"]))
    cache = manifest["producer"]["settings"]["kv_cache"]
    run_llama_cpp(build, model, ["--tokens", tokens], len(manifest["passes"]) - 1, cache, out)


def first_difference(sound: Sound, dump: Path) -> tuple[str, int | None, float, float]:
    """Of the first tensor in data-flow order that is not the same: tap, layer, largest difference, largest value."""
    _, records = read(dump)
    for ours, theirs in zip(records, sound.records, strict=True):
        if not np.array_equal(ours.values, theirs.values):
            difference = np.abs(ours.values.astype(np.float64) - theirs.values)
            return ours.tap, ours.layer, float(difference.max()), float(np.abs(theirs.values).max())
    raise SystemExit("error: llama.cpp's run of the faulty file gave the same bits: the fault has no effect")


def plant(fault: Fault, model: Path, sound: Sound, build: Path, folder: Path) -> Planted:
    target = folder / f"{fault.name}.gguf"
    shutil.copyfile(model, target)
    file = File(target)
    what = fault.plant(file, sound)
    file.save()
    with tempfile.TemporaryDirectory() as scratch:
        dump = Path(scratch) / "faulty.safetensors"
        run_again(build, target, sound, dump)
        tap, layer, differs_by, up_to = first_difference(sound, dump)
    if (tap, layer) != (fault.tap, fault.layer):
        found, expected = f"{tap}, layer {layer}", f"{fault.tap}, layer {fault.layer}"
        raise SystemExit(f"error: {fault.name}: llama.cpp's runs differ first at {found}, expected {expected}")
    return Planted(fault.name, target.name, what, tap, layer, differs_by, up_to)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the sound GGUF file, of SmolLM2's shape and types")
    parser.add_argument("--dump", type=Path, required=True, help="a full dump of it, as make_real_dumps.py makes")
    parser.add_argument("--build", type=Path, required=True, help="the environment that made the dump")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sound = Sound(options.dump)
    planted = []
    for fault in FAULTS:
        one = plant(fault, options.model, sound, options.build, options.out)
        planted.append(asdict(one))
        where = one.tap if one.layer is None else f"{one.tap} layer {one.layer}"
        differs = f"{one.llama_cpp_differs_by:.1e} of values up to {one.of_values_up_to:.1e}"
        print(f"{one.fault}: {one.what}; shows first at {where}, by {differs}", flush=True)
    (options.out / "faults.json").write_text(json.dumps(planted, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
