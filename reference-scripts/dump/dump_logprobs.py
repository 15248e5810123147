#!/usr/bin/env python3
"""Dumps nothing but log-probabilities of a text: of the token that followed each position, and of the likeliest there.

    PYTHON reference-scripts/dump/dump_logprobs.py --model DIR --tokens 1,393,395 --out FILE.safetensors [--dtype bf16] [--top 5]
    PYTHON reference-scripts/dump/dump_logprobs.py --model FILE.gguf --text "a text" --out FILE.safetensors

A directory is run by transformers, a GGUF file by llama-cpp-python: what follows is what its completion API answers with
`echo` (which takes a text alone), and the likeliest are by the same function of it, since the API names them by their text.
The API leaves the first token out that it tells of. Where a model has no token that begins a sequence, what llama-cpp-python
0.3.36 says of a token is looked up one row too late: in what follows it. `--logits` takes the right rows.
"""

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, prepare, write_dump


@dataclass(frozen=True)
class Following(Record):
    """Log-probabilities of the tokens that followed, from a row on."""

    first: int = 0

    @property
    def row(self) -> dict:
        """Its row in the manifest's `tensors`, which says of which rows of the pass they are."""
        return super().row | {"rows": list(range(self.first, self.first + len(self.values)))}


def of_transformers(args: argparse.Namespace) -> tuple[dict, str, np.ndarray, np.ndarray]:
    """Its producer, the architecture, log-probabilities of the whole vocabulary [T, V], and the last of those of what followed."""
    import torch
    import transformers

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]
    config = transformers.AutoConfig.from_pretrained(args.model)
    if args.mistake == "window":
        config.get_text_config().sliding_window += 1
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(args.model, config=config, dtype=dtype, attn_implementation="eager").eval()
    tokens = args.tokens[1:] if args.mistake == "bos" else args.tokens
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0].float()
    args.kept = logits.numpy()
    every = torch.log_softmax(logits / 0.85 if args.mistake == "temperature" else logits, dim=-1)
    following = torch.tensor(tokens[1:])
    chosen = every[:-1].gather(1, following[:, None])[:, 0]
    settings = {"dtype": args.dtype, "attention": "eager"}
    producer = {"name": "transformers", "version": transformers.__version__, "settings": settings}
    return producer, model.config.get_text_config().model_type, every.numpy(), chosen.numpy()


def of_llama_cpp(args: argparse.Namespace) -> tuple[dict, str, np.ndarray, np.ndarray]:
    """The same of a GGUF file."""
    import llama_cpp

    engine = llama_cpp.Llama(str(args.model), logits_all=True, n_ctx=256, n_threads=1, verbose=False)
    answer = engine.create_completion(args.text, max_tokens=1, temperature=0.0, echo=True, logprobs=args.top)
    args.tokens = engine.tokenize(args.text.encode(), add_bos=engine._model.add_bos_token(), special=True)
    if answer["usage"]["prompt_tokens"] != len(args.tokens):
        raise ValueError(f"the API has read {answer['usage']['prompt_tokens']} tokens, not {len(args.tokens)}")
    every = engine.logits_to_logprobs(engine.scores[: len(args.tokens)])
    # A token that begins the sequence is not among them, and the first of the others has none.
    told = len(args.tokens) - (args.tokens[0] == engine.token_bos())
    chosen = answer["choices"][0]["logprobs"]["token_logprobs"][1:told]
    if args.logits:
        chosen = every[np.arange(len(args.tokens) - 1), args.tokens[1:]]
    settings = {"kv_cache": "f16"}
    producer = {"name": "llama.cpp", "version": f"llama-cpp-python {llama_cpp.__version__}", "settings": settings}
    return producer, engine.metadata["general.architecture"], every, np.array(chosen, dtype=np.float32)


def weights_of(model: Path) -> str:
    """SHA-256 of the weight files, concatenated in file-name order."""
    files = sorted(model.glob("*.safetensors")) if model.is_dir() else [model]
    content = hashlib.sha256()
    for file in files:
        content.update(file.read_bytes())
    return content.hexdigest()


def main() -> None:
    """Runs the engine on the tokens and writes what it makes of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face directory or a GGUF file")
    parser.add_argument("--tokens", type=lambda ids: [int(one) for one in ids.split(",")])
    parser.add_argument("--text", help="of a GGUF file, in the place of tokens")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32", help="of a directory")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--logits", action="store_true", help="of a GGUF file: what followed, by its logits and not by the API")
    parser.add_argument("--with-logits", action="store_true", help="of a directory in f32: its logits, too")
    parser.add_argument(
        "--mistake",
        choices=["bos", "temperature", "window"],
        help="of a directory: the first token is not read, logits are divided, or windows are one token too wide",
    )
    args = parser.parse_args()
    if (args.tokens is None) == args.model.is_dir():
        parser.error("a directory is run on --tokens, a GGUF file on --text")
    prepare(args.out)
    producer, architecture, every, chosen = (of_transformers if args.model.is_dir() else of_llama_cpp)(args)
    ids = np.argsort(-every, axis=1, kind="stable")[:, : args.top]
    top = np.take_along_axis(every, ids, axis=1)
    following = np.asarray(chosen, dtype=np.float32)
    manifest = {
        "format": "xcheck-dump",
        "version": 2,
        "producer": producer,
        "model": {"name": args.model.name, "architecture": architecture, "sha256": weights_of(args.model)},
        "input": {"tokens": args.tokens, "decode": "forced"},
        "passes": [{"position": 0, "tokens": args.tokens}],
    }
    records = [
        Following("token_logprobs", 0, None, "f32", following, first=len(args.tokens) - 1 - len(following)),
        Following("top_ids", 0, None, "i32", ids.astype(np.int32), first=len(args.tokens) - len(ids)),
        Following("top_logprobs", 0, None, "f32", top.astype(np.float32), first=len(args.tokens) - len(top)),
    ]
    if args.with_logits:
        records.insert(0, Record("logits", 0, None, "f32", args.kept))
    write_dump(args.out, manifest, records)


if __name__ == "__main__":
    main()
