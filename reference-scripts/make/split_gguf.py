#!/usr/bin/env python3
"""Splits a GGUF file into parts, NAME-00001-of-0000N.gguf, with the writer of the gguf package.

usage: split_gguf.py FILE.gguf OUT_FOLDER --tensors 12 [--check]

`--check` loads the first part and the whole file with llama-cpp-python and compares their logits, bit for bit.
"""

import argparse
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np

TOKENS = [1, 5, 9, 12, 3, 7]


def split(source: Path, folder: Path, tensors: int) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(folder / source.name, architecture, split_max_tensors=tensors)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(file: Path) -> np.ndarray:
    from llama_cpp import Llama

    model = Llama(str(file), n_ctx=64, logits_all=True, verbose=False)
    model.eval(TOKENS)
    return np.array(model.scores[: len(TOKENS)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensors", type=int, required=True, help="tensors of each part but the last")
    parser.add_argument("--check", action="store_true", help="compare with the whole file in llama.cpp")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    split(arguments.file, arguments.folder, arguments.tensors)
    first = min(arguments.folder.glob(f"{arguments.file.stem}-00001-of-*.gguf"))
    if arguments.check:
        same = np.array_equal(logits(first), logits(arguments.file))
        print(f"llama-cpp-python {version('llama-cpp-python')}: logits of {first.name} are", "equal" if same else "DIFFERENT")
        raise SystemExit(not same)


main()
