"""Records a run of mlx-lm as a dump with taps, for architectures that xcheck does not know.

python record_mlx_lm.py MODEL_DIR --out DUMP.safetensors [--dtype bf16]

The class of each module with a tap is replaced by a subclass that writes the tap. mlx-lm reads the keys of transformers
4: make the directory with `../dump/older_config.py`. On the CPU, mlx runs mixtures of experts in f32 only.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/src"))

import xcheck

DTYPES = {"f32": mx.float32, "bf16": mx.bfloat16}
PASSES = [[(7 * at + 3) % 90 + 4 for at in range(12)], [11], [23]]
ATTENTION = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "attn_out",
    "out_proj": "attn_out",
    "dense": "attn_out",
}
FEED_FORWARD = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_out",
                "w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_out",
                "c_fc": "ffn_up", "c_proj": "ffn_out", "fc1": "ffn_up", "fc2": "ffn_out"}  # fmt: skip
RECURRENT = {"in_proj": "mixer_in", "norm": "recurrent_norm", "out_proj": "attn_out"}
BEFORE = {"attn_out": "attn_context", "ffn_out": "ffn_act", "recurrent_norm": "recurrent_out"}  # inputs


class Recorder:
    """Writes values of modules into the open pass of a dump."""

    def __init__(self, dump: xcheck.Dump, dtype: str):
        self.dump = dump
        self.dtype = dtype

    def write(self, tap: str, value: mx.array, layer: int | None = None) -> None:
        if self.dtype == "f32":
            self.dump.tap(tap, np.array(value.astype(mx.float32)), layer=layer)
        else:
            bits = np.array(value.astype(mx.bfloat16).view(mx.uint16))
            self.dump.tap(tap, bits, layer=layer, dtype="bf16")

    def watch(self, module: Any, tap: str, layer: int | None = None, given: str | None = None) -> None:
        """Writes the output of a module as a tap, and its input as the tap `given`."""
        cls = type(module)

        def call(inner: Any, *args: Any, **options: Any) -> Any:
            if given is not None:
                self.write(given, args[0], None if given == "embed" else layer)
            result = cls.__call__(inner, *args, **options)
            self.write(tap, result[0] if isinstance(result, tuple) else result, layer)
            return result

        module.__class__ = type(cls.__name__, (cls,), {"__call__": call})

    def watch_layer(self, layer: Any, number: int) -> None:
        modules = dict(layer.named_modules())
        for name, tap in norms(modules).items():
            self.watch(modules[name], tap, number)
        for name, module in modules.items():
            parent, _, last = name.rpartition(".")
            is_recurrent = parent in ("mamba", "mixer") and f"{parent}.norm" in modules
            taps = {"self_attn": ATTENTION, "mlp": FEED_FORWARD, "feed_forward": FEED_FORWARD}.get(parent, {})
            taps = RECURRENT if is_recurrent else taps
            if last in taps:
                given = None if is_recurrent and last == "out_proj" else BEFORE.get(taps[last])
                self.watch(module, taps[last], number, given)
        whole = next((name for name in ("mlp", "feed_forward", "block_sparse_moe") if name in modules), None)
        if whole and not any(f"{whole}.{name}" in modules for name in ("down_proj", "w2", "c_proj", "fc2")):
            self.watch(modules[whole], "ffn_out", number)
        self.watch(layer, "block_out", number, "embed" if number == 0 else None)


def norms(modules: dict[str, Any]) -> dict[str, str]:
    """Returns the taps of a layer's norms, by the names of transformers."""
    found = {"input_layernorm": "attn_norm", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm"}
    if "pre_mlp_layernorm" in modules:
        found |= {"post_attention_layernorm": "attn_post_norm", "pre_mlp_layernorm": "ffn_norm",
                  "post_mlp_layernorm": "ffn_post_norm"}  # fmt: skip
    elif "post_feedforward_layernorm" in modules:
        found |= {"post_attention_layernorm": "attn_post_norm", "pre_feedforward_layernorm": "ffn_norm",
                  "post_feedforward_layernorm": "ffn_post_norm"}  # fmt: skip
    else:
        found |= {"post_attention_layernorm": "ffn_norm"}
    return {name: tap for name, tap in found.items() if name in modules}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    model, config = load_model(args.model, lazy=False)
    model.set_dtype(DTYPES[args.dtype])
    inner = next(model[name] for name in ("model", "backbone", "transformer") if name in model)
    cache = make_prompt_cache(model)
    config = json.loads((args.model / "config.json").read_text())
    producer = {"producer": "mlx-lm", "version": version("mlx-lm"), "settings": {"dtype": args.dtype}}
    with xcheck.Dump(args.out, architecture=config["model_type"], config=config, tokens=PASSES[0], **producer) as dump:
        dump.forced()
        recorder = Recorder(dump, args.dtype)
        for number, layer in enumerate(model.layers):
            recorder.watch_layer(layer, number)
        last = next((name for name in ("norm", "final_layernorm", "embedding_norm", "norm_f") if name in inner), None)
        if last is not None:
            recorder.watch(inner[last], "final_norm")
        for tokens in PASSES:
            with dump.forward(tokens):
                recorder.write("logits", model(mx.array([tokens]), cache=cache))


if __name__ == "__main__":
    main()
