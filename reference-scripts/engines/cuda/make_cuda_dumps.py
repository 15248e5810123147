#!/usr/bin/env python3
"""Makes dumps of transformers on an NVIDIA GPU: every type, attention kernel and way of adding that torch offers there.

Several processes share the work. Not every kernel supports every model: results.txt lists each dump with its time, or
the error.

- MODELS: `dump_transformers.py --device cuda` with each set of options.
- --atlas DIR: models of reference-scripts/atlas, of which every module is recorded.
- --more: other ways to run the models, quantised and wide models, long prompts, and runs with a wrong configuration.
"""

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "dump"))
sys.path.insert(0, str(HERE.parents[3] / "python" / "src"))

import pool  # noqa: E402
from pool import Case  # noqa: E402

TOKENS = [
    1, 393, 395, 260, 394, 486, 263, 305, 315, 272, 411, 29, 308, 47, 260, 399, 264, 17, 501, 263, 330, 274, 260, 45
]  # fmt: skip
SHORT = TOKENS[:18]  # of the dumps that --more and --atlas add
# Name of the dump, and the options that make it.
EAGER = {
    "f32": "--dtype f32",
    "tf32": "--dtype f32 --tf32",
    "bf16": "--dtype bf16",
    "bf16-reduced": "--dtype bf16 --reduced-sums",
    "f16": "--dtype f16",
    "f16-reduced": "--dtype f16 --reduced-sums",
    "bf16-autocast": "--dtype f32 --autocast bf16",
    "f16-autocast": "--dtype f32 --autocast f16",
}
FUSED = {
    "f32-sdpa": "--dtype f32 --attention sdpa",
    "tf32-sdpa": "--dtype f32 --tf32 --attention sdpa",
    "f32-efficient": "--dtype f32 --attention sdpa --kernel efficient",
    "bf16-sdpa": "--dtype bf16 --attention sdpa --reduced-sums",
    "bf16-flash": "--dtype bf16 --attention sdpa --kernel flash",
    "bf16-efficient": "--dtype bf16 --attention sdpa --kernel efficient",
    "bf16-cudnn": "--dtype bf16 --attention sdpa --kernel cudnn",
    "bf16-math": "--dtype bf16 --attention sdpa --kernel math",
    "f16-sdpa": "--dtype f16 --attention sdpa --reduced-sums",
    "f16-flash": "--dtype f16 --attention sdpa --kernel flash",
    "f16-efficient": "--dtype f16 --attention sdpa --kernel efficient",
    "f16-cudnn": "--dtype f16 --attention sdpa --kernel cudnn",
    "f16-math": "--dtype f16 --attention sdpa --kernel math",
}
FLEX = {
    "bf16-flex": "--dtype bf16 --attention flex_attention",
    "f32-flex": "--dtype f32 --attention flex_attention",
}
FLOAT8 = {"bf16-float8": "--dtype bf16 --attention sdpa --float8 row"}
COMPILED = {
    "bf16-compiled": "--dtype bf16 --attention sdpa --compile",
    "f16-compiled": "--dtype f16 --compile",
}
DUMPS = COMPILED | FLEX | EAGER | FUSED | FLOAT8
FEW = ("tf32", "bf16", "f16", "bf16-sdpa", "f16-flash", "bf16-compiled")
NEEDS_GPU = ("--tf32", "--reduced-sums")
# Taps of long prompts, whose dumps would be large.
LONG = "--taps embed,q_rope,k_rope,v,attn_context,block_out,logits,last_logits,argmax,generated --rows last"
# Keys of config.json, and what a faulty engine reads there, by model.
FAULTS = {
    "tiny-llama3": [("theta", {"rope_parameters.rope_theta": 10000.0}), ("eps", {"rms_norm_eps": 0.01})],
    "tiny-gptoss": [("theta", {"rope_parameters.rope_theta": 100000.0}), ("window", {"sliding_window": 6})],
    "tiny-starcoder2": [("theta", {"rope_parameters.rope_theta": 100000.0}), ("eps", {"norm_epsilon": 0.01})],
    "tiny-granitemoe": [("scale", {"embedding_multiplier": 1.0}), ("scores", {"attention_multiplier": 0.25})],
    "tiny-cohere2": [("scale", {"logit_scale": 1.0}), ("window", {"sliding_window": 6})],
    "tiny-gemma2": [("scale", {"query_pre_attn_scalar": 24}), ("window", {"sliding_window": 6})],
    "tiny-olmo3": [("window", {"sliding_window": 6}), ("eps", {"rms_norm_eps": 0.01})],
    "tiny-qwen3moe": [("router", {"norm_topk_prob": False}), ("eps", {"rms_norm_eps": 0.01})],
    "tiny-olmoe": [("router", {"norm_topk_prob": True})],
}
# Of the same kind, of models whose modules are recorded.
MODULE_FAULTS = {
    "deepseek_v3": [("scale", {"routed_scaling_factor": 1.0}), ("eps", {"rms_norm_eps": 0.01})],
    "falcon_h1": [("scale", {"ssm_in_multiplier": 1.0})],
    "granitemoehybrid": [("scale", {"residual_multiplier": 1.0})],
    "qwen3_next": [("eps", {"rms_norm_eps": 0.01}), ("router", {"norm_topk_prob": False})],
    "lfm2": [("theta", {"rope_parameters.rope_theta": 100.0})],
}
LONG_MODELS = ("tiny-llama3", "tiny-gemma3", "tiny-olmo3", "tiny-gptneox", "tiny-qwen3")
WAY_MODELS = ("tiny-llama3", "tiny-gemma3", "tiny-qwen3moe", "tiny-gptoss")


def name_of(model: Path) -> str:
    return model.parent.name if model.name == "hf" else model.name


def dump(model: Path, options: str, device: str, decode: int, tokens: list[int]) -> Callable[[Path], None]:
    """Makes one dump, as the command line of dump_transformers.py would."""

    def make(out: Path) -> None:
        import dump_transformers
        import torch

        words = options.split()
        if device == "cpu":
            words = [word for word in words if word not in NEEDS_GPU]
            for option in ("--kernel", "--float8"):
                if option in words:
                    at = words.index(option)
                    del words[at : at + 2]
        sys.argv = [
            "dump_transformers.py", "--device", device, "--model", str(model), "--name", name_of(model),
            "--tokens", ",".join(map(str, tokens)), "--decode", str(decode), "--out", str(out), *words,
        ]  # fmt: skip
        try:
            dump_transformers.main()
        finally:
            torch._dynamo.reset()

    return make


def with_fault(make: Callable[[Path, Path], None], model: Path, changes: dict) -> Callable[[Path], None]:
    """Calls `make` with a model that has other values in config.json."""

    def faulty(out: Path) -> None:
        folder = out.parents[3] / "faulty" / out.parents[1].name / out.stem / name_of(model) / "hf"
        folder.mkdir(parents=True, exist_ok=True)
        config = json.loads((model / "config.json").read_text())
        for path, value in changes.items():
            *parts, last = path.split(".")
            place = config
            for part in parts:
                place = place[part]
            if last not in place:
                raise KeyError(f"{path}: config.json has {', '.join(place)}")
            place[last] = value
        (folder / "config.json").write_text(json.dumps(config))
        for file in model.glob("*model*"):
            (folder / file.name).symlink_to(file.resolve())
        make(folder, out)

    return faulty


def native(models: dict[str, Path], few: list[Path], device: str, decode: int, tokens: list[int]) -> Iterator[Case]:
    """Every dump of `models`, and the most usual dumps of `few`."""
    for dump_name, options in DUMPS.items():
        for name, model in (models | ({name_of(m): m for m in few} if dump_name in FEW else {})).items():
            yield Case(f"native/{name}/{dump_name}.safetensors", dump(model, options, device, decode, tokens))


def long_prompts(models: dict[str, Path], device: str) -> Iterator[Case]:
    """Few taps of a prompt of 200 tokens: kernels cut such a prompt into blocks."""
    tokens = [1, *((7 * n * n + 31 * n + 40) % 480 + 20 for n in range(199))]
    wanted = ["bf16", "f16", "f32-efficient", "tf32-sdpa", *(name for name in FUSED if name[:4] in ("bf16", "f16-"))]
    for name in LONG_MODELS:
        for dump_name in wanted if name in models else ():
            options = f"{(EAGER | FUSED)[dump_name]} {LONG}"
            yield Case(f"long/{name}/{dump_name}.safetensors", dump(models[name], options, device, 1, tokens))


def wide(folder: Path, device: str) -> Iterator[Case]:
    """Models with inner dimensions of 512 to 2048."""
    wanted = ["f32", "tf32", "bf16", "bf16-reduced", "f16", "f16-reduced", "bf16-flash", "bf16-cudnn", "f16-sdpa", "bf16-compiled"]
    for name in ("wide-llama", "wide-qwen3moe"):
        for dump_name in wanted:
            made = dump(folder / name, DUMPS[dump_name], device, 1, SHORT[:16])
            yield Case(f"wide/{name}/{dump_name}.safetensors", made)


def ways(models: dict[str, Path], device: str) -> Iterator[Case]:
    """Other ways to run a model than a prompt and greedy passes."""
    import hooked

    for name in WAY_MODELS:
        attention = {"attn_implementation": "eager" if name == "tiny-gptoss" else "sdpa"}
        for way in hooked.WAYS if name in models else ():
            short = way in ("batch8", "ragged")
            for dtype in ("bf16",) if way in ("compiled", "autotune", "cudagraphs", "static") else ("f32", "bf16", "f16"):
                made = hooked.dump_way(models[name], dtype, way, device, SHORT[: 8 if short else 18], **attention)
                yield Case(f"ways/{name}/{dtype}-{way}.safetensors", made)
    for name in ("tiny-olmoe", "tiny-qwen3moe", "tiny-mixtral", "tiny-granitemoe", "tiny-gptoss", "tiny-qwen2moe"):
        for experts in ("grouped_mm", "batched_mm") if name in models else ():
            for dtype in ("f32", "tf32", "bf16", "f16"):
                options = {"attn_implementation": "eager", "experts_implementation": experts}
                made = hooked.dump_way(models[name], dtype, "generate", device, SHORT, **options)
                yield Case(f"experts/{name}/{dtype}-{experts}.safetensors", made)


def quantised(folder: Path, device: str) -> Iterator[Case]:
    """A small Llama, quantised by torchao, bitsandbytes and transformers."""
    import hooked

    tokens = [token % 250 + 3 for token in SHORT]
    for way in (*hooked.TORCHAO, *hooked.BITSANDBYTES, "float8-blocks"):
        for dtype in ("bf16", "f16") if way in ("int8-dynamic", "int8-weight", "bnb-int8", "bnb-nf4") else ("bf16",):
            made = hooked.dump_quantised(folder / "quant-llama", way, dtype, device, tokens)
            yield Case(f"quantised/{way}/{dtype}.safetensors", made)


def faults(models: dict[str, Path], device: str) -> Iterator[Case]:
    """Runs with a wrong configuration."""
    for name, list_of_faults in FAULTS.items():
        for fault, changes in list_of_faults if name in models else ():
            for dtype in ("bf16", "f16"):
                for attention in ("eager", "sdpa") if name != "tiny-gptoss" else ("eager",):
                    options = f"--dtype {dtype} --attention {attention}"
                    made = with_fault(lambda m, o, s=options: dump(m, s, device, 2, SHORT)(o), models[name], changes)
                    yield Case(f"faults/{name}/{fault}-{dtype}-{attention}.safetensors", made)


def atlas(folder: Path, device: str) -> Iterator[Case]:
    """Models whose modules are recorded, correct and with a wrong configuration."""
    import hooked

    listed = json.loads((folder / "models.json").read_text())["made"]
    names = [name for name in listed if (folder / name).is_dir()]
    tokens = [token % 88 + 8 for token in SHORT]
    for dtype, attention in (("bf16", "eager"), ("f32", "eager"), ("tf32", "eager"), ("f16", "eager"), ("bf16", "sdpa"), ("tf32", "sdpa")):
        for name in names:
            has_cache = listed[name]["cache"]
            made = hooked.dump_modules(folder / name, dtype, device, tokens, attention, has_cache)
            yield Case(f"modules/{name}/{dtype}-{attention}.safetensors", made)
    for name, list_of_faults in MODULE_FAULTS.items():
        for fault, changes in list_of_faults if name in names else ():
            for dtype in ("bf16", "f16"):

                def make(model: Path, out: Path, dtype: str = dtype, has_cache: bool = listed[name]["cache"]) -> None:
                    hooked.dump_modules(model, dtype, device, tokens, "eager", has_cache)(out)

                made = with_fault(make, folder / name, changes)
                yield Case(f"module-faults/{name}/{fault}-{dtype}.safetensors", made)


def all_cases(arguments: argparse.Namespace) -> list[Case]:
    """The cases, the slow ones first."""
    models = {name_of(model): model for model in arguments.models}
    cases = list(native(models, arguments.few, arguments.device, arguments.decode, TOKENS[: arguments.length]))
    if arguments.more:
        cases += [*quantised(arguments.out / "seeded", arguments.device), *ways(models, arguments.device)]
        cases += [*faults(models, arguments.device), *wide(arguments.out / "seeded", arguments.device)]
        cases += long_prompts(models, arguments.device)
    if arguments.atlas:
        cases += atlas(arguments.atlas, arguments.device)
    if arguments.only:
        cases = [case for case in cases if any(fnmatch.fnmatch(case.name, pattern) for pattern in arguments.only)]
    slow = ("compiled", "autotune", "cudagraphs", "flex", "static")
    return sorted(cases, key=lambda case: not any(word in case.name for word in slow))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="*", help="model directories")
    parser.add_argument("--few", type=Path, nargs="*", default=[], help="model directories, of which to make few dumps")
    parser.add_argument("--atlas", type=Path, help="folder of models made by reference-scripts/atlas/tiny_models.py")
    parser.add_argument("--more", action="store_true", help="also make the dumps that the description lists")
    parser.add_argument("--decode", type=int, default=3, help="greedy passes after the prompt's (default: 3)")
    parser.add_argument("--length", type=int, default=len(TOKENS), help=f"tokens of the prompt (default: {len(TOKENS)})")
    parser.add_argument("--only", type=lambda text: text.split(","), help="patterns of dumps: native/*/bf16*,long/*")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu tests the script")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the work (default: 1)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no dump after this time (default: 3600)")
    parser.add_argument("--pack", type=Path, help="folder for archives of all dumps")
    parser.add_argument("--out", type=Path, required=True, help="a new folder: OUT/dumps/KIND/MODEL/NAME.safetensors")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)  # of a process that the script starts
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.deadline:
        pool.work(all_cases(arguments), arguments.out, arguments.deadline)
        return
    if arguments.more:
        import seeded

        for name in seeded.MODELS:
            seeded.make(name, arguments.out / "seeded" / name)
    start = time.monotonic()
    cases = all_cases(arguments)
    print(f"{len(cases)} dumps to make", flush=True)
    pool.run(arguments.processes, arguments.out, arguments.seconds, [sys.executable, *sys.argv])
    print(f"{time.monotonic() - start:.0f} s", flush=True)
    if arguments.pack:
        pool.pack(arguments.out, arguments.pack, [case.name.removesuffix(".safetensors") for case in cases])


if __name__ == "__main__":
    main()
