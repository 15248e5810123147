"""Counts the architectures that transformers, mlx-lm, SGLang and GGUF share, and those of them that xcheck's engine computes.

Run it where transformers is installed: python shared_architectures.py --xcheck XCHECK_BINARY
It downloads the wheels of mlx-lm, sglang and gguf to read the names of their models, and does not import them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import transformers

PACKAGES = ["mlx-lm==0.32.2", "sglang==0.5.23", "gguf==0.19.0"]

# Names in GGUF files that differ from transformers' by more than dashes.
GGUF_NAMES = {
    "cohere": "command-r",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "glm_moe_dsa": "glm-dsa",
    "gpt_bigcode": "starcoder",
    "granitemoehybrid": "granitehybrid",
    "hunyuan_v1_dense": "hunyuan-dense",
    "mimo_v2_flash": "mimo2",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mixtral": "llama",
    "olmo3": "olmo2",
    "phi": "phi2",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
}


def source(wheel: zipfile.ZipFile, part: str) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of a wheel's Python files whose path contains `part`."""
    for name in wheel.namelist():
        if part in name and name.endswith(".py"):
            yield name, wheel.read(name).decode()


def wheels(folder: Path) -> dict[str, zipfile.ZipFile]:
    """Downloads the wheels and opens them, by package."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, *PACKAGES], check=True)
    return {path.name.split("-")[0]: zipfile.ZipFile(path) for path in folder.glob("*.whl")}


def causal_models() -> dict[str, set[str]]:
    """Returns the classes with a language head, by folder of transformers."""
    folders: dict[str, set[str]] = {}
    for path in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        found = re.findall(r"^class (\w+ForCausalLM|\w+LMHeadModel)\b", path.read_text(), re.M)
        folders.setdefault(path.parent.name, set()).update(found)
    return {folder: classes for folder, classes in folders.items() if classes}


def plain(name: str) -> str:
    """Returns a name without separators."""
    return re.sub("[-_]", "", name)


def shared(opened: dict[str, zipfile.ZipFile]) -> list[str]:
    """Returns the folders of transformers whose architecture the three packages know, too."""
    mlx = {Path(name).stem for name, _ in source(opened["mlx_lm"], "mlx_lm/models/")}
    utils = opened["mlx_lm"].read("mlx_lm/utils.py").decode()
    mlx |= set(re.findall(r'^ +"(\w+)": "\w+",', re.search(r"MODEL_REMAPPING = \{.*?\}", utils, re.S).group(0), re.M))
    sglang = {one for _, text in source(opened["sglang"], "srt/models/") for one in re.findall(r"^class (\w+)", text, re.M)}
    constants = opened["gguf"].read("gguf/constants.py").decode()
    gguf = set(map(plain, re.findall(r'MODEL_ARCH\.\w+\s*:\s*"([^"]+)"', constants)))

    def is_shared(name: str, classes: set[str]) -> bool:
        return name in mlx and bool(classes & sglang) and plain(GGUF_NAMES.get(name, name)) in gguf

    return sorted(name for name, classes in causal_models().items() if is_shared(name, classes))


def is_native(xcheck: Path, name: str, folder: Path) -> bool:
    """Returns true if xcheck's engine knows a model type: its error is then not about `model_type`."""
    model = folder / name
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": name}))
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    command = [xcheck, "generate", "--model", model, "--tokens", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return "'model_type'" not in run.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--xcheck", type=Path, required=True, help="the program")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        names = shared(wheels(Path(folder)))
        native = [name for name in names if is_native(args.xcheck, name, Path(folder))]
    others = sorted(set(names) - set(native))
    print(f"transformers {transformers.__version__}, {', '.join(PACKAGES)}")
    print(f"{len(native)} of {len(names)} are native: {', '.join(native)}")
    print(f"the others: {', '.join(others)}")


if __name__ == "__main__":
    main()
