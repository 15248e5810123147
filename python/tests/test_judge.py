"""xcheck judges what the package writes: right engines pass, and a planted fault fails at its tap."""

from __future__ import annotations

import re

import pytest

import numpy_engine
from conftest import BITNET, CHECKPOINTS

MODELS = ["tiny-llama2", "tiny-llama3", "tiny-qwen3", "tiny-gemma3", "tiny-gemma3-vision", "tiny-gpt2"]
PROMPT = [1, 33, 35, 60, 34, 86, 63, 5, 15, 17, 200, 77]


def first_divergence(output: str) -> str:
    """The tap and layer at which the judge says that a dump goes wrong first."""
    return re.search(r"first divergence.*?\n  tap +(\w+(?:, layer \d+)?)", output, re.DOTALL)[1]


def test_the_example_in_numpy_passes(tmp_path, judge):
    numpy_engine.main(CHECKPOINTS / "tiny-llama2" / "hf", str(tmp_path / "dump"), PROMPT)
    code, output = judge("check", "tiny-llama2", "--candidate", tmp_path / "dump")
    assert code == 0, output
    assert "351 of 351 taps compared" in output


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_hooked_model_passes(tmp_path, judge, name, dtype):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    made.alone(made.load(name, getattr(torch, dtype)), PROMPT, tmp_path / "dump.safetensors", also=("attn_weights",))
    code, output = judge("run", name, "--reference", tmp_path / "dump.safetensors")
    assert code == 0, output


@pytest.mark.parametrize("name", MODELS[:4])
def test_values_of_eight_bits_pass(tmp_path, judge, name):
    made = pytest.importorskip("make_v2_dumps")
    model = made.load(name)
    made.alone(model, PROMPT, tmp_path / "whole.safetensors")
    for out in ("eighth.safetensors", "eighth"):
        made.replay(made.Reader(tmp_path / "whole.safetensors"), model, tmp_path / out, made.eighth)
        code, output = judge("check", name, "--candidate", tmp_path / out)
        assert code == 0, output


def test_a_hooked_bitnet_passes(tmp_path, judge):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    with torch.compiler.set_stance("force_eager"):
        made.alone(made.load_from(BITNET), PROMPT, tmp_path / "dump")
    code, output = judge("run", BITNET, "--reference", tmp_path / "dump")
    assert code == 0, output


def test_all_that_a_hook_can_see_passes_too(tmp_path, judge):
    made = pytest.importorskip("make_v2_dumps")
    everything = ("attn_weights", "k_cache", "v_cache")
    made.alone(made.load("tiny-gemma3"), PROMPT, tmp_path / "dump.safetensors", also=everything)
    code, output = judge("run", "tiny-gemma3", "--reference", tmp_path / "dump.safetensors")
    assert code == 0, output


def rope_base(model):
    """RoPE with a base of 5000."""
    half = model.model.rotary_emb.inv_freq.numel()
    model.model.rotary_emb.inv_freq.copy_(5000.0 ** -(model.model.rotary_emb.inv_freq.new_tensor(range(half)) / half))


def eps_of_a_norm(model):
    """A layer's norm with another eps."""
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def a_weight(model):
    """One weight of a projection that is off."""
    model.model.layers[2].mlp.down_proj.weight[5, 7] += 0.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("fault", "where"),
    [(rope_base, "k_rope, layer 0"), (eps_of_a_norm, "ffn_norm, layer 1"), (a_weight, "ffn_out, layer 2")],
)
def test_a_planted_fault_fails_at_its_tap(tmp_path, judge, fault, where, dtype):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    model = made.load("tiny-qwen3", getattr(torch, dtype))
    with torch.no_grad():
        fault(model)
    made.alone(model, PROMPT, tmp_path / "dump.safetensors")
    code, output = judge("run", "tiny-qwen3", "--reference", tmp_path / "dump.safetensors")
    assert code == 1, output
    assert first_divergence(output) == where


# ---------------------------------------------------------------------------------------------------
# What version 2 alone can say.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["tiny-llama2", "tiny-qwen3", "tiny-gemma3", "tiny-gpt2"])
def test_a_hooked_batch_passes(tmp_path, judge, name, dtype):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    made.batch(made.load(name, getattr(torch, dtype)), tmp_path / "dump.safetensors")
    code, output = judge("run", name, "--reference", tmp_path / "dump.safetensors")
    assert code == 0, output


def test_packed_sequences_pass(tmp_path, judge):
    made = pytest.importorskip("make_v2_dumps")
    made.packed(made.load("tiny-qwen3"), tmp_path / "dump")
    code, output = judge("run", "tiny-qwen3", "--reference", tmp_path / "dump")
    assert code == 0, output


def test_prompts_with_caches_of_their_own_pass(tmp_path, judge):
    made = pytest.importorskip("make_v2_dumps")
    made.one_after_the_other(made.load("tiny-llama2"), tmp_path / "dump")
    code, output = judge("run", "tiny-llama2", "--reference", tmp_path / "dump")
    assert code == 0, output


def test_fused_projections_of_a_batch_pass(tmp_path, judge):
    made = pytest.importorskip("make_v2_dumps")
    made.batch(made.load("tiny-gpt2"), tmp_path / "dump", cut_fused=False)
    code, output = judge("run", "tiny-gpt2", "--reference", tmp_path / "dump")
    assert code == 0, output


@pytest.mark.parametrize(
    ("fault", "where"),
    [(rope_base, "k_rope, layer 0"), (eps_of_a_norm, "ffn_norm, layer 1"), (a_weight, "ffn_out, layer 2")],
)
def test_a_fault_planted_in_a_batch_fails_at_its_tap(tmp_path, judge, fault, where):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    model = made.load("tiny-qwen3")
    with torch.no_grad():
        fault(model)
    made.batch(model, tmp_path / "dump.safetensors")
    code, output = judge("run", "tiny-qwen3", "--reference", tmp_path / "dump.safetensors")
    assert code == 1, output
    assert first_divergence(output) == where


def replayed(form: str, dtype: str = "float32", **options):
    """A run that is written once more in another form."""

    def write(made, model, folder):
        made.alone(model, PROMPT, folder / "alone.safetensors", **options)
        source = made.Reader(folder / "alone.safetensors")
        made.replay(source, model, folder / "dump.safetensors", getattr(made, form))
        return folder / "dump.safetensors"

    return write, dtype


def by_layer(made, model, folder):
    made.alone(model, PROMPT, folder / "dump", by_layer=True)
    return folder / "dump"


def continuous(made, model, folder):
    sources = []
    for index, prompt in enumerate(made.PROMPTS):
        made.alone(model, prompt, folder / f"{index}.safetensors")
        sources.append(made.Reader(folder / f"{index}.safetensors"))
    made.continuous(sources, model, folder / "dump.safetensors")
    return folder / "dump.safetensors"


FORMS = {
    "by_layer": (by_layer, "float32"),
    "by_head": replayed("by_head"),
    "rows": replayed("some_rows", also=("attn_weights",)),
    "computed": replayed("computed", "bfloat16"),
    "continuous": (continuous, "float32"),
}


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_a_run_are_judged_like_the_run(tmp_path, judge, form, broken):
    made, torch = pytest.importorskip("make_v2_dumps"), pytest.importorskip("torch")
    write, dtype = FORMS[form]
    model = made.load("tiny-qwen3", getattr(torch, dtype))
    if broken:
        with torch.no_grad():
            a_weight(model)
    dump = write(made, model, tmp_path)
    assert made.Reader(dump).manifest["version"] == 2
    code, output = judge("run", "tiny-qwen3", "--reference", dump)
    assert code == int(broken), output
    if broken:
        assert first_divergence(output) == "ffn_out, layer 2"
