"""Makes tiny seeded models of every transformers architecture with a causal language model, and of some encoders.

    python tiny_models.py --out DIR [--only NAME ...] [--head-dim 32]

Each model becomes a directory DIR/NAME with config.json and model.safetensors. DIR/models.json lists the models made,
the ones that failed and why, and the versions used.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from sizes import NEUTRAL, OVERRIDES, SIZES, TOWERS, VARIANTS
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

PROMPT = 24
# Parameters with a structured start value (decays, steps, mixing factors): noise is added, the value is kept.
STRUCTURED = re.compile(
    r"(A_log|dt_bias|\.D|lambda\w*|time_\w+|recurrent_param|slope|sinks|layer_scalar|\w*scale\w*)$", re.I
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--only", nargs="*", help="names of models; default: all")
    parser.add_argument("--head-dim", type=int, default=SIZES["head_dim"], help="width of a head")
    args = parser.parse_args()
    SIZES["head_dim"] = args.head_dim
    quiet()
    made: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for name in args.only or names():
        try:
            made[name] = make(name, args.out / name)
        except Exception as error:  # any architecture may refuse the small sizes: listed with the reason
            failed[name] = f"{type(error).__name__}: {error}"[:400]
        print(f"{name}: {failed.get(name, 'made')}"[:250], flush=True)
    write_list(args.out / "models.json", made, failed)
    print(f"{len(made)} made, {len(failed)} failed")


def quiet() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def write_list(path: Path, made: dict[str, Any], failed: dict[str, str]) -> None:
    """Writes models.json, keeping the entries of models that this call did not make."""
    old = json.loads(path.read_text()) if path.exists() else {"made": {}, "failed": {}}
    made = {**{k: v for k, v in old["made"].items() if k not in failed}, **made}
    failed = {**{k: v for k, v in old["failed"].items() if k not in made}, **failed}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "python": sys.version.split()[0]}
    text = json.dumps({"versions": versions, "made": made, "failed": failed}, indent=1, sort_keys=True)
    path.write_text(text + "\n")


def names() -> list[str]:
    """Names of all models: model types with a causal language model, variants, towers."""
    return [*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS, *TOWERS]


def make(name: str, out: Path) -> dict[str, Any]:
    """Makes one model, checks that it loads again with equal outputs, and describes it."""
    torch.manual_seed(zlib.crc32(name.encode()))
    if name in TOWERS:
        class_name, config_name, extra = TOWERS[name]
        config = shrunk(getattr(transformers, config_name), extra)
        if class_name == "WhisperEncoder":
            from transformers.models.whisper.modeling_whisper import WhisperEncoder as model_class
        else:
            model_class = getattr(transformers, class_name)
        model = model_class._from_config(config)
    else:
        kind, extra = VARIANTS.get(name, (name, {}))
        config = shrunk(type(AutoConfig.for_model(kind)), {**OVERRIDES.get(kind, {}), **extra})
        model = AutoModelForCausalLM.from_config(config)
        model_class = type(model)
    model = model.float().eval()
    randomize(model)
    inputs = example_inputs(model)
    with torch.no_grad():
        before = first_tensor(model(**inputs))
    if not torch.isfinite(before).all():
        raise ValueError("the outputs are not finite")
    model.save_pretrained(out)
    again, report = model_class.from_pretrained(out, output_loading_info=True, local_files_only=True)
    with torch.no_grad():
        after = first_tensor(again.eval()(**inputs))
    if report["missing_keys"] or not torch.equal(before, after):
        raise ValueError(f"loading it again changes it: missing {sorted(report['missing_keys'])[:5]}")
    cache = name not in TOWERS and has_cache(again, inputs["input_ids"])
    return {"class": type(model).__name__, "cache": cache, "model_type": config.model_type, "parameters": model.num_parameters(),
            "output_rms": round(float(before.square().mean().sqrt()), 4)}  # fmt: skip


def has_cache(model: Any, ids: torch.Tensor) -> bool:
    """Tests that decoding from the cache gives the logits of one pass over all tokens."""
    try:
        with torch.no_grad():
            full = model(input_ids=ids, use_cache=False).logits
            first = model(input_ids=ids[:, :-2], use_cache=True)
            key = next(
                key for key in ("past_key_values", "cache_params", "state") if getattr(first, key, None) is not None
            )
            second = model(input_ids=ids[:, -2:-1], use_cache=True, **{key: getattr(first, key)})
            third = model(input_ids=ids[:, -1:], use_cache=True, **{key: getattr(second, key)})
    except Exception:  # a model that needs more arguments to go on from its cache is run in one pass
        return False
    parts = torch.cat([first.logits, second.logits, third.logits], 1)
    return parts.shape == full.shape and bool(torch.allclose(parts, full, rtol=1e-3, atol=1e-3))


def first_tensor(output: Any) -> torch.Tensor:
    for key in ("logits", "last_hidden_state"):
        if getattr(output, key, None) is not None:
            return getattr(output, key)
    return output[0]


def example_inputs(model: Any) -> dict[str, torch.Tensor]:
    """Returns seeded inputs: 24 token ids, an image, patches of two images, or a log-mel spectrogram."""
    generator = torch.Generator().manual_seed(7)
    config, main_input = model.config, model.main_input_name
    if "grid_thw" in inspect.signature(model.forward).parameters:
        grid = torch.tensor([[1, 8, 6], [1, 4, 4]])  # frames, rows and columns of patches
        values = config.in_channels * config.temporal_patch_size * config.patch_size**2
        patches = torch.randn(int(grid.prod(1).sum()), values, generator=generator)
        return {"hidden_states": patches, "grid_thw": grid}
    if main_input == "pixel_values":
        return {"pixel_values": torch.randn(1, 3, config.image_size, config.image_size, generator=generator)}
    if main_input == "input_features":
        length = 2 * config.max_source_positions
        return {"input_features": torch.randn(1, config.num_mel_bins, length, generator=generator)}
    return {"input_ids": torch.randint(8, config.get_text_config().vocab_size, (1, PROMPT), generator=generator)}


def shrunk(config_class: Any, extra: dict[str, Any]) -> Any:
    """Makes a config whose size fields are small; sub-configs are shrunk in the same way."""
    return config_class(**{**small_values(config_class().to_dict()), **extra})


def small_values(default: dict[str, Any]) -> dict[str, Any]:
    """Returns the small value of every size field in a config's default dictionary."""
    layers = next(
        (default[key] for key in ("num_hidden_layers", "n_layer", "num_layers", "n_layers") if key in default), 0
    )
    small: dict[str, Any] = {}
    for key, value in default.items():
        key_small = small_value(key, value, layers)
        if key_small is not None:
            small[key] = key_small
    if default.get("kv_lora_rank"):
        small["num_key_value_heads"] = SIZES["num_attention_heads"]
        small["qk_head_dim"] = SIZES["qk_nope_head_dim"] + SIZES["qk_rope_head_dim"]
        if default.get("head_dim") == default.get("qk_rope_head_dim"):  # the dimensions that RoPE rotates
            small["head_dim"] = SIZES["qk_rope_head_dim"]
    return small


def small_value(key: str, value: Any, layers: int) -> Any:
    """Returns the small value of one field; None keeps the default."""
    if key == "per_layer_config":
        return {layer: {"head_dim": 2 * SIZES["head_dim"]} for layer in ("01", "03")}
    if isinstance(value, dict) and (key.endswith("_config") or key in ("decoder", "text_encoder", "audio_encoder")):
        return {**value, **small_values(value)}
    if key.endswith("token_id") and isinstance(value, (int, list)):
        return {"pad_token_id": 0, "bos_token_id": 1}.get(key, 2)
    if key in NEUTRAL and (value == 1 or isinstance(value, list)):
        return NEUTRAL[key]
    if isinstance(value, list) and len(value) == layers and layers > 1:
        return kinds(value, SIZES["num_hidden_layers"])
    if key in ("head_dim", "num_key_value_heads") and value is None:
        return SIZES[key]
    if key in SIZES and value is not None and not isinstance(value, (bool, list, dict)) and value not in (0, -1):
        return type(value)(SIZES[key])
    return None


def kinds(values: list[Any], count: int) -> list[Any]:
    """Returns `count` layers in which every kind of the full list occurs, in order of first appearance."""
    if values == list(range(len(values))):
        return list(range(count))
    unique = list(dict.fromkeys(values))
    if len(unique) >= count:
        return unique[:count]
    if len(unique) == 2 and values[-1] == values[0] == unique[0]:
        return [unique[0], unique[1], unique[1], unique[0]][:count]
    return [unique[i % len(unique)] for i in range(count)]


def randomize(model: Any) -> None:
    """Draws weights such that every mechanism matters: products keep variance 1, nothing is zero or neutral."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    transposed = {id(m.weight) for m in model.modules() if type(m).__name__ == "Conv1D"}
    seen: set[int] = set()
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *saved_buffers(model)]:
            if id(weight) in seen or not weight.is_floating_point() or not weight.numel():
                continue
            seen.add(id(weight))
            constant = bool((weight == weight.flatten()[0]).all())
            if STRUCTURED.search(name) or weight.dim() < 2:
                spread = 0.2 if constant or not STRUCTURED.search(name) else 0.1
                base = weight if constant or STRUCTURED.search(name) else torch.zeros_like(weight)
                weight.copy_(base + spread * uniform(weight))
            elif id(weight) in embeddings:
                weight.normal_()
            else:
                weight.normal_(std=inputs_of(weight, id(weight) in transposed) ** -0.5)


def uniform(like: torch.Tensor) -> torch.Tensor:
    return 2 * torch.rand_like(like) - 1


def inputs_of(weight: torch.Tensor, is_transposed: bool) -> float:
    """Returns the number of products that one output sums."""
    if is_transposed:
        return weight.shape[0]
    if weight.dim() == 3 and weight.shape[0] != weight.shape[2] and min(weight.shape[1:]) > 4:  # experts: either order
        return float(weight.shape[1] * weight.shape[2]) ** 0.5
    return weight[0].numel()


def saved_buffers(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Lists the buffers that a checkpoint holds, such as a router's correction bias; counters and caches are left out."""
    saved = set(model.state_dict())
    return [(n, b) for n, b in model.named_buffers() if n in saved and n.endswith("bias") and b.dim() == 1]


if __name__ == "__main__":
    main()
