"""Makes tests/data/integers: a small random Llama whose linear layers torchao has quantised, its decoded weights and its dumps.

`-theta` are the same engines with a wrong RoPE base. Made with torch 2.15.0, torchao 0.18.0 and transformers 5.24.0:

    PYTHONPATH=python/src python reference-scripts/make/make_integer_dumps.py tests/data/integers
"""

import sys
from pathlib import Path

import torch
import torchao.quantization as quantization
import xcheck
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])
WAYS = {
    "int8-weight-only": quantization.Int8WeightOnlyConfig,
    "int8-dynamic": quantization.Int8DynamicActivationInt8WeightConfig,
}


def model(theta):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_theta=theta,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config._attn_implementation = "eager"
    # Frequencies of RoPE stay in f32, as where a model is loaded.
    made = LlamaForCausalLM(config).eval()
    frequencies = made.model.rotary_emb.inv_freq.clone()
    made = made.to(torch.bfloat16)
    made.model.rotary_emb.inv_freq = frequencies
    random = torch.Generator().manual_seed(2)
    for name, weight in made.named_parameters():
        if weight.dim() == 2:
            size = 0.7 if "embed" in name else 0.18
            weight.data = (torch.randn(weight.shape, generator=random) * size).to(torch.bfloat16)
    return made


def decoded(weight):
    is_quantised = type(weight) is not torch.Tensor and hasattr(weight, "dequantize")
    return (weight.dequantize() if is_quantised else weight).to(torch.bfloat16).contiguous()


def main(out):
    for name, way in WAYS.items():
        for fault, theta in (("", 500000.0), ("-theta", 10000.0)):
            made = model(theta)
            quantization.quantize_(made, way())
            if not fault:
                (out / name).mkdir(parents=True, exist_ok=True)
                made.config.save_pretrained(out / name)
                weights = {key: decoded(weight) for key, weight in made.state_dict().items()}
                save_file(weights, out / name / "model.safetensors", metadata={"format": "pt"})
            with torch.no_grad(), xcheck.hook(made, out / f"{name}{fault}.safetensors"):
                mask = torch.ones_like(TOKENS)
                made.generate(
                    TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False
                )


main(Path(sys.argv[1]))
