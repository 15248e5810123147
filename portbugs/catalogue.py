"""Writes variants.json: correct variants, as a product of kinds, models and types, thinned to 500 by a seed.

    python catalogue.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COUNT = 500
MODELS = ["tiny-llama2", "tiny-llama3", "tiny-gpt2", "tiny-gemma3", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3-bias", "tiny-granite",
          "tiny-llama-bias", "tiny-llama-yarn", "tiny-mistral", "tiny-mixtral", "tiny-olmo2", "tiny-qwen2", "tiny-qwen2moe",
          "tiny-qwen3-bias", "tiny-qwen3-yarn", "tiny-qwen3moe", "tiny-smollm3"]  # fmt: skip
WINDOWS = ["tiny-gemma3", "tiny-gemma2", "tiny-mistral", "tiny-gemma3-bias"]
MIXTURES = ["tiny-mixtral", "tiny-qwen2moe", "tiny-qwen3moe"]
ROTATING = [model for model in MODELS if model != "tiny-gpt2"]
SHORT = {"fused": True}
ALL, F32, HALF = ("f32", "bf16", "f16"), ("f32",), ("bf16", "f16")

# kind, reason, types, models, choices of (features, schedule, other fields)
Choice = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
KINDS: list[tuple[str, str, tuple[str, ...], list[str], list[Choice]]] = [
    ("eager", "transformers' own arithmetic", ALL, MODELS, [({}, {}, {})]),
    ("fused kernels", "each operation computes in f32 and rounds its result once", HALF, MODELS, [(SHORT, {}, {})]),
    ("f32 residual", "the residual stream is wider than the other values", ("bf16",), MODELS, [({**SHORT, "stream": "f32"}, {}, {})]),
    ("order of sums", "a sum of f32 terms in any order is within the same bound", ALL, MODELS,
     [({"sums": order}, {}, {}) for order in ("reversed", "shuffled", "one-by-one", "f64")]),
    ("split-K", "sums of parts are kept in f32", ALL, MODELS, [({"split_k": parts}, {}, {}) for parts in (2, 4)]),
    ("tensor parallelism", "each rank's result has the engine's type, as in transformers and vLLM", ALL, MODELS, [({"ranks": 2}, {}, {})]),
    ("flash attention", "blocks of keys with a running maximum are the same softmax", ALL, MODELS,
     [({"fused": True, "flash": block}, {}, {}) for block in (1, 4, 16)]),
    ("merged attention", "parts weighted by the logarithms of their sums are one softmax", ALL, MODELS,
     [({"fused": True, "merge": True}, {"chunks": [8, 6]}, {})]),
    ("exponentials", "other exponentials within 2 units in the last place", ALL, MODELS,
     [({"exponentials": kind}, {}, {}) for kind in ("base-2", "2-ulp", "no-maximum")]),
    ("attention scale", "the scale on queries, or its root on queries and keys, is the same product", F32, MODELS,
     [({"scaled": what}, {}, {}) for what in ("queries", "both")]),
    ("chunked prefill", "a prompt in chunks has the same rows", ALL, MODELS, [({}, {"chunks": chunks}, {}) for chunks in ([1], [3], [5, 4], [8, 6])]),
    ("batches", "rows of other sequences change nothing", ALL, MODELS, [({}, {"prompts": sizes}, {}) for sizes in ([9, 7], [5, 8, 3])]),
    ("padding", "rows of padding are not read", ALL, ROTATING,
     [({}, {"prompts": [9, 6], "padding": side}, {}) for side in ("left", "right")]),
    ("rejected drafts", "rows of rejected tokens are not read again", F32, ROTATING, [({}, {"drafts": [9, 11]}, {})]),
    ("KV types", "keys and values are rounded once, to the stated type", F32, MODELS,
     [({"kv": dtype}, {}, {}) for dtype in ("f16", "bf16", "f8_e4m3", "f8_e5m2", "int8")]),
    ("RoPE pairs", "permuted weights and neighbouring pairs give the same scores", ALL, ROTATING, [({"pairing": "interleaved"}, {}, {})]),
    ("fused weights", "a product with joined matrices has the same columns", ALL, MODELS, [({"fused_weights": True}, {}, {})]),
    ("ring cache", "keys that no later query sees are dropped", ALL, WINDOWS, [({"ring": True}, {}, {}), ({"ring": True}, {"chunks": [5, 4]}, {})]),
    ("flush to zero", "subnormal results are zero", F32, MODELS, [({"tiny": "flush"}, {}, {})]),
    ("activation formulas", "another formula of the same function", ALL, MODELS, [({"silu_form": kind}, {}, {}) for kind in ("division", "tanh")]),
    ("norm formulas", "a division in place of a reciprocal root, or f64", ALL, MODELS, [({"root": kind}, {}, {}) for kind in ("division", "f64")]),
    ("rotations", "complex products, or angles in f64", F32, ROTATING, [({"turns": kind}, {}, {}) for kind in ("complex", "f64")]),
    ("order of experts", "experts may be listed and added in any order", ALL, MIXTURES,
     [({"expert_order": kind}, {}, {}) for kind in ("descending", "ascending", "at-once")]),
    ("TF32", "operands of products have 11 bits, as stated", F32, MODELS, [({"operands": "tf32"}, {}, {})]),
    ("stored types", "values are stored in a shorter type than they were used in", F32, MODELS, [({}, {}, {"stored": dtype}) for dtype in ("f16", "bf16")]),
    ("stored wider", "values of a short type are stored in f32, as hooks do that end in .float()", HALF, MODELS, [({}, {}, {"stored": "f32"})]),
    ("thinned dumps", "fewer taps are recorded", ALL, MODELS,
     [({}, {}, {"taps": taps}) for taps in (["embed", "block_out", "logits"], ["attn_norm", "q", "k", "v", "attn_out", "ffn_norm", "ffn_out",
      "block_out", "logits"], ["block_out", "last_logits", "argmax"])]),
]  # fmt: skip


def product() -> list[dict[str, Any]]:
    cases = []
    for kind, reason, types, models, choices in KINDS:
        for model in models:
            for dtype in types:
                for features, schedule, more in choices:
                    words = [str(v) for part in (features, schedule, more) for v in part.values() if v is not True]
                    name = "-".join([kind, model.removeprefix("tiny-"), dtype, *words]).lower()
                    name = "".join(c if c.isalnum() or c == "_" else "-" for c in name)
                    name = "-".join(part for part in name.split("-") if part)
                    cases.append({"id": name, "kind": kind, "reason": reason, "model": model, "dtype": dtype,
                                  "features": features, "schedule": schedule, **more})  # fmt: skip
    return cases


def thinned(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keeps COUNT cases: kinds with few cases whole, the others in equal numbers."""
    shuffle = random.Random("portbugs 1")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        by_kind.setdefault(case["kind"], []).append(case)
    for group in by_kind.values():
        shuffle.shuffle(group)
    kept: set[str] = set()
    while len(kept) < COUNT:
        for group in by_kind.values():
            if group and len(kept) < COUNT:
                kept.add(group.pop()["id"])
    return [case for case in cases if case["id"] in kept]


def main() -> None:
    cases = product()
    if len({case["id"] for case in cases}) != len(cases):
        raise ValueError("two variants have one id")
    path = Path(__file__).with_name("variants.json")
    path.write_text(json.dumps({"version": 1, "variants": thinned(cases)}, indent=1) + "\n")
    print(f"{len(cases)} in all, {COUNT} kept")


if __name__ == "__main__":
    main()
