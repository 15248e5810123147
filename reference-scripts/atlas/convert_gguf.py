"""Converts a model without a tokenizer to an F32 GGUF file with llama.cpp's own converter.

python convert_gguf.py LLAMA_CPP MODEL_DIR FILE.gguf

LLAMA_CPP is the folder vendor/llama.cpp of the source distribution of llama-cpp-python.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    convert(*map(Path, sys.argv[1:]))


def convert(llama_cpp: Path, model: Path, out: Path) -> None:
    """Runs the converter in this process. It writes the size of the vocabulary in place of a tokenizer."""
    if "conversion" not in sys.modules:
        sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
        import conversion

        class_of = conversion.get_model_class
        conversion.get_model_class = lambda *args, **options: without_vocabulary(class_of(*args, **options))
    sys.argv = [str(llama_cpp / "convert_hf_to_gguf.py"), str(model), "--outtype", "f32", "--outfile", str(out)]
    runpy.run_path(sys.argv[0], run_name="__main__")


def without_vocabulary(model_class: Any) -> Any:
    def set_vocab(self: Any) -> None:
        self.gguf_writer.add_tokenizer_model("no_vocab")
        self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])

    model_class.set_vocab = set_vocab
    return model_class


if __name__ == "__main__":
    main()
