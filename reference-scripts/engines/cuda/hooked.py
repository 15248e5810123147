"""Dumps of models that `xcheck.hook` records: in other ways to run a model than a prompt and greedy passes, quantised
models, and models whose modules are recorded."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import transformers
import xcheck
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

TYPES = {"f32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
DECODE = 2


def load(model: Path, dtype: str, device: str, **options: Any) -> Any:
    """Loads a model with torch's defaults, which earlier dumps of this process may have changed."""
    transformers.logging.set_verbosity_error()
    torch.use_deterministic_algorithms(False)
    torch.compiler.set_stance("default")
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=TYPES[dtype], **options).eval()
    return loaded.to(device)


def settings(model: Any, dtype: str, **more: Any) -> dict[str, Any]:
    """Describes the run. TF32 cannot be seen in a model."""
    device = {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if torch.cuda.is_available() else {}
    return {
        "dtype": dtype,
        "kv_cache": "f32" if dtype == "tf32" else dtype,
        "attention": model.config._attn_implementation,
        "torch": str(torch.__version__),
        **device,
        **more,
    }


# ---- ways to run a model ----------------------------------------------------------------------------------------


def greedy(model: Any, ids: Tensor, **options: Any) -> None:
    """The prompt in one pass, then greedy passes."""
    mask = torch.ones_like(ids)
    model.generate(
        ids, attention_mask=mask, max_new_tokens=DECODE + 1, min_new_tokens=DECODE + 1, do_sample=False, **options
    )


def in_chunks(size: int) -> Callable[[Any, Tensor], None]:
    """Reads the prompt in passes of `size` tokens on one cache."""

    def run(model: Any, ids: Tensor) -> None:
        cache = DynamicCache()
        for part in ids.split(size, dim=1):
            model(input_ids=part, past_key_values=cache, use_cache=True)

    return run


def static_cache(model: Any, ids: Tensor) -> None:
    """Keys and values in a cache of fixed length; generate compiles the passes of one token."""
    greedy(model, ids, cache_implementation="static")


def batch(count: int) -> Callable[[Any, Tensor], None]:
    """As many sequences at once: the prompt, and others of the same length."""

    def run(model: Any, ids: Tensor) -> None:
        vocabulary = model.config.get_text_config().vocab_size
        greedy(model, torch.cat([(ids * (2 * n + 1) + 3 * n) % (vocabulary - 8) + (4 if n else 0) for n in range(count)]))

    return run


def ragged(model: Any, ids: Tensor) -> None:
    """Three sequences of different lengths, padded on the left."""
    lengths = [ids.shape[1], ids.shape[1] // 2, 3]
    mask = torch.tensor([[0] * (ids.shape[1] - n) + [1] * n for n in lengths], device=ids.device)
    padded = ids.expand(3, -1) * mask
    model.generate(
        padded, attention_mask=mask, max_new_tokens=DECODE + 1, min_new_tokens=DECODE + 1, do_sample=False, pad_token_id=0
    )


def compiled(mode: str | None, **options: Any) -> Callable[[Any, Tensor], None]:
    """Compiles the model's forward pass."""

    def run(model: Any, ids: Tensor) -> None:
        model.forward = torch.compile(model.forward, mode=mode, **options)
        in_passes(model, ids)

    return run


def in_passes(model: Any, ids: Tensor) -> None:
    """The prompt in one pass, then greedy passes, without generate."""
    cache = DynamicCache()
    for _ in range(DECODE + 1):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        ids = logits[:, -1:].argmax(-1)


WAYS: dict[str, Callable[[Any, Tensor], None]] = {
    "generate": greedy,
    "steps": in_chunks(1),
    "chunks": in_chunks(5),
    "static": static_cache,
    "batch8": batch(8),
    "ragged": ragged,
    "compiled": compiled(None),
    "autotune": compiled("max-autotune-no-cudagraphs"),
    "cudagraphs": compiled("reduce-overhead"),
}


def dump_way(model: Path, dtype: str, way: str, device: str, tokens: list[int], **options: Any) -> Callable[[Path], None]:
    """Records a model in one of the WAYS."""

    def make(out: Path) -> None:
        loaded = load(model, dtype, device, **options)
        stated = settings(loaded, dtype, batch=way, **options.get("stated", {}))
        ids = torch.tensor([tokens], device=device)
        with torch.no_grad(), xcheck.hook(loaded, out, settings=stated):
            WAYS[way](loaded, ids)

    return make


def dump_modules(model: Path, dtype: str, device: str, tokens: list[int], attention: str, has_cache: bool = True):
    """Records the output of every module."""

    def make(out: Path) -> None:
        experts = {"experts_implementation": "eager"} if attention == "eager" else {}
        try:
            loaded = load(model, dtype, device, attn_implementation=attention, **experts)
        except (TypeError, ValueError):
            loaded = load(model, dtype, device, attn_implementation=attention)
        experts = getattr(loaded.config, "_experts_implementation", None) or "eager"
        ids = torch.tensor([tokens], device=device)
        with torch.no_grad(), xcheck.hook(loaded, out, modules=True, settings=settings(loaded, dtype, experts=experts)):
            if has_cache:
                greedy(loaded, ids)
            else:
                loaded(input_ids=ids, use_cache=False)

    return make


# ---- quantised models -------------------------------------------------------------------------------------------


def torchao_ways() -> dict[str, Any]:
    from torchao import quantization as ao
    from torchao.quantization.granularity import PerRow, PerTensor

    return {
        "float8-row": ao.Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
        "float8-tensor": ao.Float8DynamicActivationFloat8WeightConfig(granularity=PerTensor()),
        "float8-weight": ao.Float8WeightOnlyConfig(),
        "int8-dynamic": ao.Int8DynamicActivationInt8WeightConfig(),
        "int8-weight": ao.Int8WeightOnlyConfig(),
        "int4-weight": ao.Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d"),
        "int4-plain": ao.Int4WeightOnlyConfig(group_size=32),
    }


def bitsandbytes_ways() -> dict[str, Any]:
    from transformers import BitsAndBytesConfig

    four = {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.bfloat16}
    return {
        "bnb-nf4": BitsAndBytesConfig(**four, bnb_4bit_quant_type="nf4"),
        "bnb-nf4-double": BitsAndBytesConfig(**four, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
        "bnb-fp4": BitsAndBytesConfig(**four, bnb_4bit_quant_type="fp4"),
        "bnb-int8": BitsAndBytesConfig(load_in_8bit=True),
    }


TORCHAO = ("float8-row", "float8-tensor", "float8-weight", "int8-dynamic", "int8-weight", "int4-weight", "int4-plain")
BITSANDBYTES = ("bnb-nf4", "bnb-nf4-double", "bnb-fp4", "bnb-int8")


def quantised(model: Path, way: str, dtype: str, device: str) -> Any:
    """Loads a model whose linear layers one of the libraries has quantised."""
    if way in BITSANDBYTES:
        config = bitsandbytes_ways()[way]
        return AutoModelForCausalLM.from_pretrained(
            model, dtype=TYPES[dtype], quantization_config=config, device_map=device, attn_implementation="eager"
        ).eval()
    if way == "float8-blocks":
        from transformers import FineGrainedFP8Config

        return AutoModelForCausalLM.from_pretrained(
            model, dtype=TYPES[dtype], quantization_config=FineGrainedFP8Config(), device_map=device,
            attn_implementation="eager",
        ).eval()  # fmt: skip
    from transformers import TorchAoConfig

    return AutoModelForCausalLM.from_pretrained(
        model, dtype=TYPES[dtype], quantization_config=TorchAoConfig(torchao_ways()[way]), device_map=device,
        attn_implementation="eager",
    ).eval()  # fmt: skip


def decoded(module: Any) -> Tensor:
    """The weight of a module in f32, or in the type that its library decodes to."""
    weight = module.weight
    if type(weight).__name__ == "Params4bit":
        import bitsandbytes

        return bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    if type(weight).__name__ == "Int8Params":
        return weight.CB.float() * weight.SCB.float()[:, None] / 127
    if type(weight) in (Tensor, torch.nn.Parameter):
        if hasattr(module, "weight_scale_inv"):
            scale = module.weight_scale_inv.float()
            blocks = [-(-size // count) for size, count in zip(weight.shape, scale.shape, strict=True)]
            scale = scale.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)
            return weight.float() * scale[: weight.shape[0], : weight.shape[1]]
        return weight.data
    try:
        return weight.dequantize(torch.float32)
    except TypeError:
        return weight.dequantize()


def dump_quantised(model: Path, way: str, dtype: str, device: str, tokens: list[int]) -> Callable[[Path], None]:
    """Quantises a model, saves it, saves its decoded weights as an unquantised model, and records a run."""

    def make(out: Path) -> None:
        load(model, dtype, "cpu")  # torch's defaults
        made = quantised(model, way, dtype, device)
        folder = out.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        weights = {}
        for name, module in made.named_modules():
            if getattr(module, "weight", None) is not None:
                weights[f"{name}.weight"] = decoded(module).detach().cpu().contiguous()
            if getattr(module, "bias", None) is not None:
                weights[f"{name}.bias"] = module.bias.detach().cpu().contiguous()
        (folder / "decoded").mkdir(exist_ok=True)
        save_file(weights, folder / "decoded/model.safetensors", metadata={"format": "pt"})
        config = json.loads((model / "config.json").read_text())
        (folder / "decoded/config.json").write_text(json.dumps(config, indent=1))
        try:
            made.save_pretrained(folder / "saved")
        except Exception as error:  # noqa: BLE001
            print(f"not saved: {error}")
        ids = torch.tensor([tokens], device=device)
        with torch.no_grad(), xcheck.hook(made, out, settings=settings(made, dtype)):
            greedy(made, ids)

    return make
