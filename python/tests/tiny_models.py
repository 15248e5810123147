"""Tiny models of many architectures, and what plain forward hooks see of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
import transformers

import xcheck
from reader import Reader

torch.set_num_threads(1)  # the models are tiny

SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SIZES |= dict(intermediate_size=48, max_position_embeddings=64, head_dim=8)
MIXED = dict(num_experts_per_tok=2, moe_intermediate_size=16)
DECODERS = {
    "deepseek_v3": dict(
        **{**{name: size for name, size in SIZES.items() if name != "head_dim"}, "num_key_value_heads": 4},
        **MIXED,
        **dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8),
        **dict(n_routed_experts=4, n_group=2, topk_group=1, first_k_dense_replace=1),
    ),
    "gpt_oss": dict(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    "qwen3_next": dict(
        **SIZES,
        **MIXED,
        **dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8),
        **dict(num_experts=4, shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"]),
    ),
    "granitemoehybrid": dict(
        **SIZES,
        **dict(layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8),
        **dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48, logits_scaling=4.0),
    ),
    "lfm2": dict(**SIZES, layer_types=["conv", "full_attention"]),
    "mamba2": dict(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1
    ),
}
TOWER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
PROMPT = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
IMAGE = {"pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))}
SOUND = {"input_features": torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(1))}
SOUND["attention_mask"] = torch.ones(1, 20, dtype=torch.long)
WORDS = {"input_ids": torch.tensor([[5, 6, 7, 8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])}
WORDS["token_type_ids"] = torch.tensor([[0, 0, 1, 1, 0, 0]])
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def decoder(kind: str, dtype: str = "f32", attention: str = "eager", experts: str = "eager"):
    """A tiny model of an architecture that the package has no map of."""
    config = transformers.AutoConfig.for_model(kind, **DECODERS[kind])
    config._experts_implementation = experts
    torch.manual_seed(0)
    can = {} if kind == "mamba2" or (kind, attention) == ("gpt_oss", "sdpa") else {"attn_implementation": attention}
    model = transformers.AutoModelForCausalLM.from_config(config, **can).eval()
    model.generation_config.eos_token_id = None
    return model.to(DTYPES[dtype])


def bert(kind: str = "BertForMaskedLM"):
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(vocab_size=64, **TOWER)).eval()


def modernbert():
    config = transformers.ModernBertConfig(vocab_size=64, pad_token_id=0, **TOWER, attn_implementation="sdpa")
    torch.manual_seed(0)
    return transformers.ModernBertModel(config).eval()


def siglip():
    torch.manual_seed(0)
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**TOWER, image_size=16, patch_size=8)).eval()


def whisper():
    sizes = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, num_mel_bins=8)
    sizes |= dict(decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=48, vocab_size=64, pad_token_id=0)
    config = transformers.WhisperConfig(**sizes, max_source_positions=10, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    return transformers.WhisperForConditionalGeneration(config).eval()


def t5():
    sizes = dict(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()


class Seen:
    """Outputs of each module by path, pass and call, as plain forward hooks see them."""

    def __init__(self, model):
        self.model, self.passes, self.values, self.calls, self.handles = model, -1, {}, Counter(), []

    def __enter__(self):
        self.handles = [self.model.register_forward_pre_hook(self.begin)]
        for path, module in self.model.named_modules():
            self.handles.append(module.register_forward_hook(lambda m, i, result, path=path: self.see(path, result)))
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def begin(self, *_):
        self.passes += 1
        self.calls.clear()

    def see(self, path, result):
        call, self.calls[path] = self.calls[path], self.calls[path] + 1
        if not path and hasattr(result, "logits"):
            path, result = "logits", result.logits
        elif isinstance(result, dict):
            result = result.last_hidden_state
        value = result[0] if isinstance(result, tuple) else result
        if path and isinstance(value, torch.Tensor):
            self.values[path, self.passes, call] = value.detach().clone()


def same_values(read: Reader, seen: Seen) -> None:
    """The dump has every value that was seen, and no other."""
    rows = read.outputs()
    assert set(rows) == set(seen.values)
    for key, row in rows.items():
        assert row["shape"] == list(seen.values[key].shape)
        np.testing.assert_array_equal(read.value(row), seen.values[key].float().numpy(), err_msg=str(key))


def recorded(model, out, run, **options) -> tuple[Reader, Seen]:
    """Returns the dump of a run, and the outputs that plain hooks see in the same run."""
    with torch.no_grad(), Seen(model) as seen, xcheck.hook(model, out, **options):
        run(model)
    return Reader(out), seen


def generate(model) -> None:
    model.generate(PROMPT, max_new_tokens=3, do_sample=False)


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
