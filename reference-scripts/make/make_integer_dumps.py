"""Makes tests/data/integers: small random Llamas whose linear layers torchao or optimum-quanto has quantised, their decoded weights
and their dumps.

`-theta` are the same engines with a wrong RoPE base. Made with torch 2.15.0, torchao 0.18.0, optimum-quanto 0.2.7 and transformers
5.24.0:

    PYTHONPATH=python/src python reference-scripts/make/make_integer_dumps.py tests/data/integers [int8-quanto ...]
"""

import sys
from pathlib import Path

import torch
import torchao.quantization as quantization
import xcheck
from optimum import quanto
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = torch.tensor([[1, 39, 35, 26, 9, 41]])


def with_torchao(config):
    return lambda made: quantization.quantize_(made, config())


def with_quanto(made):
    quanto.quantize(made, weights=quanto.qint8)
    quanto.freeze(made)


# Way to quantise, and number of layers.
WAYS = {
    "int8-weight-only": (with_torchao(quantization.Int8WeightOnlyConfig), 2),
    "int8-dynamic": (with_torchao(quantization.Int8DynamicActivationInt8WeightConfig), 2),
    "int8-quanto": (with_quanto, 6),
}


def model(theta, layers):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=layers,
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
    is_quantised = type(weight) not in (torch.Tensor, torch.nn.Parameter)
    return (weight.dequantize() if is_quantised else weight.data).to(torch.bfloat16).contiguous()


def main(out):
    wanted = sys.argv[2:] or WAYS
    for name, (quantise, layers) in ((name, WAYS[name]) for name in wanted):
        for fault, theta in (("", 500000.0), ("-theta", 10000.0)):
            made = model(theta, layers)
            quantise(made)
            if not fault:
                (out / name).mkdir(parents=True, exist_ok=True)
                made.config.save_pretrained(out / name)
                names = [name for name, _ in LlamaForCausalLM(made.config).named_parameters()]
                weights = {name: decoded(made.get_parameter(name)) for name in names}
                save_file(weights, out / name / "model.safetensors", metadata={"format": "pt"})
            with torch.no_grad(), xcheck.hook(made, out / f"{name}{fault}.safetensors"):
                mask = torch.ones_like(TOKENS)
                made.generate(
                    TOKENS, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False
                )


main(Path(sys.argv[1]))
