"""Makes `tests/data/longrope`: dumps of tiny-phi4 by transformers whose sequence grows beyond what LongRoPE's short factors are for.

    python make_longrope_dumps.py

| dump | what it is |
|---|---|
| `generate.safetensors` | `generate()`, which drops the cache at the crossing and reads everything again |
| `kept.safetensors` | a loop over `forward` with a cache, whose keys keep their rotation |
| `long.safetensors` | the same loop with the long factors in the place of the short ones: as llama.cpp and vLLM choose by their context |

Of each pass the dump holds the rows of its own tokens: `block_out`, `last_logits`, and the cache after it.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
from dump_writer import Record, write_dump

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "data" / "architectures" / "tiny-phi4" / "hf"
OUT = ROOT / "tests" / "data" / "longrope"
PROMPT = [1, 393, 395, 260, 17, 301, 88, 440]  # two tokens fewer than the short factors are for
DECODE = 6


class Watch:
    """What each forward of a model makes of the tokens that are new to it."""

    def __init__(self, model) -> None:
        self.model, self.records, self.passes, self.read = model, [], [], 0
        self.blocks: list[torch.Tensor] = []
        for layer in model.model.layers:
            layer.register_forward_hook(lambda _, __, out: self.blocks.append(out[0] if isinstance(out, tuple) else out))

    def seen(self, tokens: list[int], logits: torch.Tensor, cache) -> None:
        """After a forward that ends the sequence with `tokens`."""
        index, count = len(self.passes), len(tokens)
        self.passes.append({"position": self.read, "tokens": tokens})
        self.read += count

        def add(tap: str, layer: int | None, values: torch.Tensor) -> None:
            self.records.append(Record(tap, index, layer, "f32", values.detach().numpy().copy()))

        for layer, out in enumerate(self.blocks):
            for tap, of in (("k_cache", cache.layers[layer].keys), ("v_cache", cache.layers[layer].values)):
                add(tap, layer, of[0].transpose(0, 1))
            add("block_out", layer, out[0, -count:])
        self.blocks.clear()
        add("last_logits", None, logits[0, -1])

    def write(self, name: str, generated: list[int], settings: dict) -> None:
        self.records.append(Record("generated", None, None, "u32", np.array(generated)))
        manifest = {
            "format": "xcheck-dump",
            "version": 1,
            "producer": {
                "name": "transformers",
                "version": transformers.__version__,
                "settings": {"dtype": "f32", "kv_cache": "f32", "attention": "eager", "torch": torch.__version__, **settings},
            },
            "model": {"name": "tiny-phi4", "architecture": "phi3"},
            "layout": {"rope_pairing": "half"},
            "input": {"tokens": PROMPT, "decode": "greedy"},
            "passes": self.passes,
            "generated": generated,
        }
        write_dump(OUT / f"{name}.safetensors", manifest, self.records)


def loaded(factors: str | None = None):
    config = transformers.AutoConfig.from_pretrained(MODEL)
    if factors:
        config.rope_parameters["short_factor"] = config.rope_parameters[factors]
    return AutoModelForCausalLM.from_pretrained(MODEL, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def by_generate() -> None:
    model = loaded()
    watch = Watch(model)
    forward = model.forward

    def watched(*args, **kwargs):
        out = forward(*args, **kwargs)
        length = out.past_key_values.get_seq_length()
        watch.seen(known[watch.read : length], out.logits, out.past_key_values)
        known.append(int(out.logits[0, -1].argmax()))
        return out

    known = list(PROMPT)
    model.forward = watched
    ids = torch.tensor([PROMPT])
    out = model.generate(ids, max_new_tokens=DECODE + 1, do_sample=False, eos_token_id=None, pad_token_id=0)
    watch.write("generate", out[0, len(PROMPT) :].tolist(), {})


def by_forward(name: str, factors: str | None) -> None:
    model = loaded(factors)
    watch, cache, tokens, generated = Watch(model), DynamicCache(config=model.config), PROMPT, []
    for _ in range(DECODE + 1):
        logits = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True).logits
        watch.seen(tokens, logits, cache)
        tokens = [int(logits[0, -1].argmax())]
        generated += tokens
    watch.write(name, generated, {})


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for path in OUT.glob("*.safetensors"):
        path.unlink()
    with torch.no_grad():
        by_generate()
        by_forward("kept", None)
        by_forward("long", "long_factor")
