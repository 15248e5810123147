"""Hooks on models whose linear layers are another library's, or whose padding counts as positions."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import make_v2_dumps as made  # noqa: E402
import xcheck  # noqa: E402
from reader import Reader  # noqa: E402
from xcheck import DumpError  # noqa: E402

PROMPT = torch.tensor([made.PROMPTS[0]])
NAME = "tiny-llama3"


def generate(model) -> None:
    model.generate(input_ids=PROMPT, max_new_tokens=4, do_sample=False)


def call(model) -> None:
    model(input_ids=PROMPT)


def adapted(targets: list[str], name: str = NAME):
    """A model with LoRA layers whose adapters are not zero."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False)
    return peft.get_peft_model(made.load(name), config).eval()


def saved(model, folder):
    """A folder with a model's weights as they are computed with."""
    model.generation_config = transformers.GenerationConfig(pad_token_id=made.PAD)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("use", [generate, call])
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["down_proj", "o_proj", "gate_proj"]])
def test_a_peft_model_is_judged_by_its_merged_weights(tmp_path, judge, use, targets):
    model = adapted(targets)
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors"):
        use(model)
    producer = Reader(tmp_path / "dump.safetensors").manifest["producer"]
    assert producer["name"] == "transformers"
    code, output = judge("check", made.CHECKPOINTS / NAME / "hf", "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, f"without the adapter: {output}"
    merged = saved(model.merge_and_unload(), tmp_path / "merged")
    code, output = judge("check", merged, "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output


def test_an_adapter_that_is_wrong_in_one_layer_is_found_there(tmp_path, judge):
    model = adapted(["q_proj", "down_proj"])
    right = adapted(["q_proj", "down_proj"])
    merged = saved(right.merge_and_unload(), tmp_path / "merged")
    with torch.no_grad():
        model.get_base_model().model.layers[1].mlp.down_proj.scaling["default"] *= 1.5
        with xcheck.hook(model, tmp_path / "dump.safetensors"):
            generate(model)
    code, output = judge("check", merged, "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, output
    assert "ffn_out, layer 1" in output


def quantized(model, **options):
    """Replaces the linear layers of the decoder by HQQ's; gives back the weights that they compute with."""
    quantize = pytest.importorskip("hqq.core.quantize")
    config = quantize.BaseQuantizeConfig(nbits=8, group_size=64)
    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, linear in list(parent.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    new = quantize.HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu", **options)
                    setattr(parent, name, new)


def with_dequantized(model):
    """A plain model with the weights that HQQ's layers compute with."""
    plain = made.load(NAME)
    for layer, other in zip(plain.model.layers, model.model.layers):
        for parent, quantized_parent in ((layer.self_attn, other.self_attn), (layer.mlp, other.mlp)):
            for name, linear in parent.named_children():
                if isinstance(linear, torch.nn.Linear):
                    linear.weight.data = getattr(quantized_parent, name).dequantize().reshape(linear.weight.shape)
    return plain


@pytest.mark.parametrize("keeps", [True, False])
def test_a_model_of_hqq_is_judged_by_its_decoded_weights(tmp_path, judge, keeps):
    model = made.load(NAME)
    quantized(model, del_orig=not keeps)
    with torch.no_grad():
        decoded = saved(with_dequantized(model), tmp_path / "decoded")
        with xcheck.hook(model, tmp_path / "dump.safetensors"):
            generate(model)
    manifest = Reader(tmp_path / "dump.safetensors").manifest
    assert manifest["producer"]["settings"]["dtype"] == "f32"
    code, output = judge("check", decoded, "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output
    code, output = judge("check", NAME, "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, f"other weights: {output}"


# ---------------------------------------------------------------------------------------------------
# Padding that counts.


def without_positions(model, steps: int = 1) -> None:
    """A batch that is padded on the left, and a model that counts the padding; decoded by hand."""
    batch = made.padded(made.PROMPTS[:2])
    ids, mask, cache = batch["input_ids"], batch["attention_mask"], None
    for _ in range(steps):
        output = model(input_ids=ids, attention_mask=mask, past_key_values=cache)
        ids, cache = output.logits[:, -1:].argmax(-1), made.cache_of(output)
        mask = torch.cat([mask, torch.ones_like(ids)], 1)


@pytest.mark.parametrize("name", ["tiny-llama3", "tiny-qwen3", "tiny-gemma3", "tiny-llama2"])
@pytest.mark.parametrize("steps", [1, 3])
def test_padding_that_counts_changes_nothing_for_rope_and_is_recorded(tmp_path, judge, name, steps):
    model = made.load(name)
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors", also=["k_cache", "v_cache"]):
        without_positions(model, steps)
    read = Reader(tmp_path / "dump.safetensors")
    assert read.manifest["producer"]["settings"]["positions"] == "padding counts"
    assert not any(row["tap"] in ("k_rope", "k_cache") for row in read.rows)
    code, output = judge("check", name, "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output


def test_padding_that_counts_is_a_fault_of_learned_positions(tmp_path, judge):
    model = made.load("tiny-gpt2")
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors"):
        without_positions(model)
    assert Reader(tmp_path / "dump.safetensors").manifest["producer"]["settings"]["positions"] == "padding counts"
    code, output = judge("check", "tiny-gpt2", "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, output


def test_a_fault_behind_padding_that_counts_is_found(tmp_path, judge):
    model = made.load(NAME)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[5, 7] += 0.5
        with xcheck.hook(model, tmp_path / "dump.safetensors"):
            without_positions(model, 2)
    code, output = judge("check", NAME, "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, output
    assert "ffn_out, layer 1" in output


def test_positions_that_are_neither_are_refused_behind_the_call(tmp_path):
    model = made.load(NAME)
    returned = []
    with pytest.raises(DumpError, match="a row of sequence 0 is at position 2, expected 1"), torch.no_grad():
        with xcheck.hook(model, tmp_path / "dump.safetensors"):
            returned.append(model(PROMPT, position_ids=torch.tensor([[0, *range(2, 13)]])).logits)
            returned.append(model(PROMPT).logits)
    assert len(returned) == 2
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------
# A few taps of generate().


def batch(model) -> None:
    model.generate(**made.padded(made.PROMPTS), max_new_tokens=6, do_sample=False)


def latest(model) -> None:
    model(PROMPT, logits_to_keep=3)


FEW = [("block_out", "logits"), ("logits",), ("logits", "argmax"), ("final_norm", "logits")]


@pytest.mark.parametrize("name", [NAME, "tiny-gpt2", "tiny-gemma3"])
@pytest.mark.parametrize("only", FEW, ids="+".join)
@pytest.mark.parametrize("use", [generate, batch, latest, call])
def test_a_few_taps_of_a_right_model_pass(tmp_path, judge, name, only, use):
    model = made.load(name)
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors", only=only):
        use(model)
    code, output = judge("check", name, "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output


@pytest.mark.parametrize("only", FEW, ids="+".join)
@pytest.mark.parametrize("use", [generate, batch])
def test_a_few_taps_of_a_wrong_model_fail(tmp_path, judge, only, use):
    model = made.load(NAME)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[5] += 0.5
        model.lm_head.weight[7] *= 1.5  # what final_norm cannot show
        with xcheck.hook(model, tmp_path / "dump.safetensors", only=only):
            use(model)
    code, output = judge("check", NAME, "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, output
