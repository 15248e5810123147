"""Taps of engines that compute otherwise than transformers, and of models that have no place for some taps."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator_taps import PASSES, Judged, record  # noqa: E402

import tiny  # noqa: E402
import xcheck  # noqa: E402
from xcheck.evaluator.attention import AttentionCall, watched_attention  # noqa: E402
from xcheck.evaluator.evaluation import Session  # noqa: E402
from xcheck.evaluator.rounding import Evaluation  # noqa: E402
from xcheck.evaluator.tap_places import Place, Places  # noqa: E402
from xcheck.evaluator.tracked import Settings, fresh  # noqa: E402
from xcheck.hook import rope_pairing  # noqa: E402


def exact_gelu(value):
    return torch.nn.functional.gelu(value)


def tabulated_gelu(value):
    found = torch.nn.functional.gelu(value.half().float(), approximate="tanh")
    return found.half().float()


@pytest.mark.parametrize(
    "producer, gelu, passes",
    [
        ("llama.cpp", tabulated_gelu, True),
        ("engine", tabulated_gelu, False),
        ("llama.cpp", torch.nn.functional.silu, False),
        ("engine", exact_gelu, False),  # in place of the tanh form
    ],
)
def test_gelu_of_llama_cpp_comes_from_a_table_of_f16(models, tmp_path, producer, gelu, passes):
    model = tiny.load(models("gemma3_text"))
    for layer in model.model.layers:
        layer.mlp.act_fn.forward = gelu
    dump = record(model, tmp_path / "dump.safetensors", producer=producer, head_dim=8)
    wrong = Judged(models("gemma3_text"), dump).wrong
    assert (not wrong) if passes else wrong[0] == ("ffn_out", 0, 0)


def test_softplus_of_other_engines_rounds_its_sum():
    x = torch.linspace(-12, 3, 200)
    for is_other in (False, True):
        settings = Settings(4)
        settings.is_other_engine = is_other
        given = fresh(x.double(), torch.float32)
        with Evaluation(settings):
            exact = torch.nn.functional.softplus(given)
        error = (torch.log(1 + torch.exp(x)).double() - exact.exact).abs()
        assert bool((error > 8 * exact.variance().sqrt()).any()) != is_other


def test_values_that_a_layer_limits_after_the_projection_have_no_place(models):
    model = tiny.load(models("llama"))
    assert Places(model).find("q", 0) == Place("model.layers.0.self_attn.q_proj", "output")
    model.model.layers[0].self_attn.clip_qkv = 8.0
    assert isinstance(Places(model).find("q", 0), str)


def test_layers_that_run_several_times_have_no_taps(models, tmp_path):
    model, dump = tiny.load(models("llama")), tmp_path / "dump.safetensors"
    weights = {}

    def extra(file):
        file.tap("q_rope", weights["q"][0].transpose(0, 1), layer=0)

    with watched_attention(lambda call: weights.setdefault("q", call.query)):
        record(model, dump, passes=PASSES[:1], extra=extra)
    result = Judged(models("llama"), dump)
    assert not result.wrong and not result.missing
    result = Judged.__new__(Judged)
    result.session = Session(str(models("llama")), str(dump), 4)
    result.session.load()
    result.sites, result.missing, result.wrong = [], [], []
    twice = result.session.model.model
    twice.layers.append(twice.layers[0])
    twice.config.num_hidden_layers = 3
    result.session.run(result.take)
    assert {tap for (tap, _, _), why in result.missing if "layers 2 times" in why} >= {"q", "block_out", "embed"}


def test_a_model_without_a_head_has_no_logits(models, tmp_path):
    tiny.load(models("llama")).model.save_pretrained(tmp_path / "base")
    with xcheck.Dump(tmp_path / "dump.safetensors", producer="engine", architecture="llama", tokens=PASSES[0],
                     settings={"dtype": "f32"}) as dump:  # fmt: skip
        dump.forced()
        with dump.forward(PASSES[0]):
            dump.tap("last_logits", torch.arange(96.0))
    result = Judged(tmp_path / "base", tmp_path / "dump.safetensors")
    assert not result.sites and "the model returns no logits" in result.missing[0][1]


def test_a_model_without_rope_has_no_pairs(models, tmp_path):
    model = tiny.load(models("gpt2"))
    assert rope_pairing(model) is None
    with xcheck.Dump(tmp_path / "dump.safetensors", producer="engine", architecture="gpt2", tokens=PASSES[0],
                     rope_pairing="interleaved", n_heads=4, head_dim=8, settings={"dtype": "f32"}) as dump:  # fmt: skip
        dump.forced()
        seen = []
        with watched_attention(lambda call: seen.append(call.query)), torch.no_grad(), dump.forward(PASSES[0]):
            model(input_ids=torch.tensor([PASSES[0]]))
            dump.tap("q_rope", seen[0][0].transpose(0, 1).contiguous(), layer=0)
    result = Judged(models("gpt2"), tmp_path / "dump.safetensors")
    assert result.sites == [("q_rope", 0, 0)] and not result.wrong


def test_weights_without_the_share_of_attention_sinks_are_not_judged():
    module, weights = torch.nn.Module(), torch.full((1, 2, 3, 4), 0.25)
    call = AttentionCall(module, weights, weights, weights, weights=weights)
    assert call.value("attn_weights", 3) is weights
    module.sinks = torch.zeros(2)
    assert call.value("attn_weights", 3) is None
    assert AttentionCall(module, weights, weights, weights, weights=weights / 2).value("attn_weights", 3) is not None


@pytest.mark.parametrize("setting, passes", [({"torch_compile": "on"}, True), ({}, False)])
def test_a_compiled_model_goes_on_with_values_before_they_are_rounded(models, tmp_path, setting, passes):
    """A fused kernel normalises a sum in f32, and records the sum in bf16."""
    model = tiny.load(models("gpt2"), torch.bfloat16).transformer
    ids = torch.tensor([PASSES[0]])
    with torch.no_grad():
        total = (model.wte(ids).float() + model.wpe(torch.arange(len(PASSES[0]))).float()).squeeze(0) + 0.5
        norm = model.h[0].ln_1.float()(total).bfloat16()
    with xcheck.Dump(tmp_path / "dump.safetensors", producer="transformers", architecture="gpt2", tokens=PASSES[0],
                     settings={"dtype": "bf16", **setting}) as dump:  # fmt: skip
        dump.forced()
        with dump.forward(PASSES[0]):
            dump.module("transformer.drop", total.bfloat16()[None])
            dump.module("transformer.h.0.ln_1", norm[None])
    session = Session(str(models("gpt2")), str(tmp_path / "dump.safetensors"), 4)
    session.load()
    session.run(lambda message, tensors: None)
    assert (("transformer.h.0.ln_1", 0, 0) not in session.wrong) == passes
