"""The weight files of a model directory, their digest, and a configuration under the names of transformers 4."""

import hashlib
import json
from pathlib import Path

WEIGHT_FILES = ("model.safetensors", "model-*.safetensors", "pytorch_model.bin", "pytorch_model-*.bin")


def weight_files(directory: Path) -> list[Path]:
    """The weight files, in file-name order."""
    for pattern in WEIGHT_FILES:
        if files := sorted(directory.glob(pattern)):
            return files
    raise FileNotFoundError(f"{directory}: none of {', '.join(WEIGHT_FILES)} is there")


def sha256(files: list[Path]) -> str:
    """The digest of the files, concatenated."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def load_config(directory: Path) -> dict:
    """config.json."""
    return json.loads((directory / "config.json").read_text())


def with_older_keys(config: dict) -> dict:
    """The configuration with what `rope_parameters` says in the keys that transformers 4 wrote as well.

    Engines that were written before transformers 5 look for these keys alone, and where they find none they take a
    default or refuse the model.
    """
    rope = config.get("rope_parameters") or {}
    older = {}
    if "full_attention" in rope:  # Gemma 3: one RoPE of each kind of layer
        older["rope_theta"] = rope["full_attention"]["rope_theta"]
        older["rope_local_base_freq"] = rope.get("sliding_attention", rope["full_attention"])["rope_theta"]
        if "_sliding_window_pattern" in config:
            older["sliding_window_pattern"] = config["_sliding_window_pattern"]
    elif rope:
        older["rope_theta"] = rope["rope_theta"]
        if rope["rope_type"] != "default":
            older["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    factor = rope.get("partial_rotary_factor")
    if factor is not None:
        older["partial_rotary_factor"] = factor
    if config["model_type"] in ("gpt_neox", "cohere2"):
        older |= {"rotary_pct": factor or 1.0, "rotary_emb_base": rope["rope_theta"]}
    if config["model_type"] == "bamba":
        older["attn_rotary_emb"] = int(factor * config["hidden_size"] // config["num_attention_heads"])
    if config["model_type"] == "gpt2":
        older["n_ctx"] = config["n_positions"]
    if config["model_type"] == "deepseek_v3":
        older |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return config | older
