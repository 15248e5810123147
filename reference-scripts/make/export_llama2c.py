#!/usr/bin/env python3
"""Writes a Hugging Face Llama directory as a llama2.c model of version 0, 1 or 2, and its tokenizer.bin.

Refused is what run.c computes otherwise: another RoPE base or scaling, another epsilon, heads of another size.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))
import llama2c_file
from llama2c_file import Sizes


def neighbours(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k for a program that rotates neighbours, where the model's rotate with half a head between."""
    rows, cols = matrix.shape
    halves = matrix.reshape(heads, 2, rows // heads // 2, cols)
    return halves.swapaxes(1, 2).reshape(rows, cols)


def refuse_what_run_c_ignores(config) -> None:
    """Ends the program if run.c would compute another model."""
    rope = config.rope_parameters
    expected = {
        "RoPE type": (rope["rope_type"], "default"),
        "RoPE base": (rope["rope_theta"], 10000.0),
        "RMSNorm epsilon": (config.rms_norm_eps, 1e-5),
        "activation": (config.hidden_act, "silu"),
        "head size": (config.head_dim * config.num_attention_heads, config.hidden_size),
        "attention bias": (config.attention_bias, False),
        "feed-forward bias": (config.mlp_bias, False),
    }
    for what, (found, wanted) in expected.items():
        if found != wanted:
            sys.exit(f"error: {what} is {found}; run.c computes with {wanted}")


def weights_of(model) -> dict[str, list[np.ndarray]]:
    """The weights under run.c's names, by layer."""
    config, layers = model.config, model.model.layers
    array = lambda module: module.weight.detach().float().numpy()  # noqa: E731
    return {
        "token_embedding": [array(model.model.embed_tokens)],
        "rms_att": [array(layer.input_layernorm) for layer in layers],
        "wq": [neighbours(array(layer.self_attn.q_proj), config.num_attention_heads) for layer in layers],
        "wk": [neighbours(array(layer.self_attn.k_proj), config.num_key_value_heads) for layer in layers],
        "wv": [array(layer.self_attn.v_proj) for layer in layers],
        "wo": [array(layer.self_attn.o_proj) for layer in layers],
        "rms_ffn": [array(layer.post_attention_layernorm) for layer in layers],
        "w1": [array(layer.mlp.gate_proj) for layer in layers],
        "w2": [array(layer.mlp.down_proj) for layer in layers],
        "w3": [array(layer.mlp.up_proj) for layer in layers],
        "rms_final": [array(model.model.norm)],
        "wcls": [array(model.lm_head)],
    }


def export(model, version: int, group: int, out: Path) -> None:
    """Writes a loaded model."""
    config = model.config
    refuse_what_run_c_ignores(config)
    if version == 2 and (config.hidden_size % group or config.intermediate_size % group):
        sys.exit(f"error: groups of {group} do not divide the rows of {config.hidden_size} and {config.intermediate_size}")
    sizes = Sizes(
        config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads,
        config.num_key_value_heads, config.vocab_size, config.max_position_embeddings,
    )  # fmt: skip
    weights = weights_of(model)
    shared = np.array_equal(weights["token_embedding"][0], weights["wcls"][0])
    llama2c_file.write_model(out, version, sizes, weights, shared, group)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory")
    parser.add_argument("--version", type=int, choices=llama2c_file.VERSIONS, required=True)
    parser.add_argument("--group", type=int, default=64, help="elements that share a scale in version 2")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.bin to write from the directory's tokenizer.model")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    model = AutoModelForCausalLM.from_pretrained(arguments.model)
    export(model, arguments.version, arguments.group, arguments.out)
    if arguments.tokenizer:
        pieces = SentencePieceProcessor(model_file=str(arguments.model / "tokenizer.model"))
        llama2c_file.write_tokenizer(arguments.tokenizer, pieces)


if __name__ == "__main__":
    main()
