"""The evaluator: correct runs pass, each fault is found at the first wrong module."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import tiny  # noqa: E402
from module_recorder import record  # noqa: E402
from xcheck.evaluator.bounds import violations  # noqa: E402
from xcheck.evaluator.candidate import Row  # noqa: E402
from xcheck.evaluator.causes.search import search  # noqa: E402
from xcheck.evaluator.evaluation import Session  # noqa: E402
from xcheck.evaluator.forcing import Forcing  # noqa: E402
from xcheck.evaluator.rounding import Evaluation  # noqa: E402

torch.set_num_threads(1)
PASSES = [tiny.TOKENS]
DECODE = [tiny.TOKENS[:7], [51], [4], [60]]


class Judged:
    """Judges a dump: the sites that fail, in the order of execution."""

    def __init__(self, path, dump, runs: int = 4):
        self.session = Session(str(path), str(dump), runs)
        self.session.load()
        self.sites, self.missing, self.wrong, self.tied, self.sigmas = [], [], [], [], {}
        self.hello = self.session.hello("0")
        self.session.run(self.take)

    def take(self, message, tensors):
        if message["message"] == "missing":
            self.missing.append(message)
        if message["message"] == "site":
            site = (message["module"], message["call"], message["pass"])
            self.sites.append(site)
            stored = self.session.dump.value(self.session.dump.rows[site])
            self.sigmas[site] = (tensors["sigma"], tensors["exact"])
            if violations(stored, tensors["exact"], tensors["sigma"]):
                (self.tied if message.get("tie") else self.wrong).append(site)


def judged(path, tmp_path, fault=None, dtype=torch.float32, attention="eager", passes=PASSES, **options):
    model = tiny.load(path, dtype, attention)
    if fault is not None:
        with torch.no_grad():
            fault(model)
    return Judged(path, record(model, passes, tmp_path / "dump.safetensors", attention=attention, **options))


@pytest.mark.parametrize("kind", tiny.MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_a_correct_run_passes(models, tmp_path, kind, dtype):
    result = judged(models(kind), tmp_path, dtype=dtype)
    assert not result.wrong and not result.missing
    assert len(result.sites) == len(result.session.dump.rows)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "granitemoehybrid", "lfm2"])
def test_decoding_with_a_cache_passes(models, tmp_path, kind):
    result = judged(models(kind), tmp_path, passes=DECODE)
    assert not result.wrong and not result.missing
    assert {site[2] for site in result.sites} == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_sdpa_passes(models, tmp_path, kind):
    assert not judged(models(kind), tmp_path, attention="sdpa").wrong


def test_a_few_recorded_modules_are_judged_over_many_operations(models, tmp_path):
    only = {"model.layers.0", "model.layers.1", "logits"}
    result = judged(models("llama"), tmp_path, dtype=torch.bfloat16, only=only)
    assert len(result.sites) == 3 and not result.wrong


def test_sigma_is_0_for_an_embedding_and_positive_elsewhere(models, tmp_path):
    result = judged(models("llama"), tmp_path)
    forwards = ("embed_tokens", "self_attn", "mlp", "logits", "model")  # the output of the module before, but for one
    for (module, _, _), (sigma, exact) in result.sigmas.items():
        assert bool(torch.isfinite(sigma).all())
        if module.rsplit(".", 1)[-1] in forwards:
            assert bool((sigma == 0).all()), module
        else:
            assert bool((sigma > 0).all()), module
            assert float((8 * sigma).square().mean().sqrt()) < 1e-4 * float(exact.square().mean().sqrt())


def attributes(**values):
    """Returns a fault that sets attributes of modules."""

    def change(model):
        found = 0
        for module in model.modules():
            for name, value in values.items():
                if isinstance(getattr(module, name, None), (bool, int, float)):
                    setattr(module, name, value(getattr(module, name)) if callable(value) else value)
                    found += 1
        assert found

    return change


def parameter(path, function):
    """Returns a fault that changes a parameter."""

    def change(model):
        value = model.get_parameter(path)
        value.copy_(function(value.clone(), model))

    return change


FAULTS = {
    "eps": ("llama", attributes(variance_epsilon=1e-5), "model.layers.0.input_layernorm", "rms_norm_eps"),
    "scale": ("llama", attributes(scaling=lambda s: 0.9 * s), "model.layers.0.self_attn.o_proj", "modeling_llama.py"),
    "other layer": (
        "llama",
        parameter("model.layers.1.mlp.up_proj.weight", lambda w, m: m.model.layers[0].mlp.up_proj.weight),
        "model.layers.1.mlp.up_proj",
        "model.layers.0.mlp.up_proj.weight is used",
    ),
    "transposed": (
        "llama",
        parameter("model.layers.1.self_attn.q_proj.weight", lambda w, m: w.t()),
        "model.layers.1.self_attn.q_proj",
        "q_proj.weight is transposed",
    ),
    "norm weight": (
        "gemma3_text",
        parameter("model.layers.1.input_layernorm.weight", lambda w, m: w - 1),
        "model.layers.1.input_layernorm",
        "one is subtracted from",
    ),
    "bias": (
        "gpt2",
        parameter("transformer.h.1.mlp.c_fc.bias", lambda b, m: 0 * b),
        "transformer.h.1.mlp.c_fc",
        "c_fc.bias is not added",
    ),
    "routed scale": (
        "deepseek_v3",
        attributes(routed_scaling_factor=1.0),
        "model.layers.1.mlp.experts",
        "routed_scaling",
    ),
    "top-k norm": ("deepseek_v3", attributes(norm_topk_prob=False), "model.layers.1.mlp.experts", "norm_topk_prob"),
    "sinks": (
        "gpt_oss",
        parameter("model.layers.0.self_attn.sinks", lambda s, m: 0 * s),
        "model.layers.0.self_attn.o_proj",
        "sinks is zero",
    ),
    "dt_bias": (
        "granitemoehybrid",
        parameter("model.layers.0.mamba.dt_bias", lambda b, m: 0 * b),
        "model.layers.0.mamba.norm",
        "dt_bias is not added",
    ),
    "residual multiplier": (
        "granitemoehybrid",
        attributes(residual_multiplier=1.0),
        "model.layers.0.post_attention_layernorm",
        "residual_multiplier",
    ),
    "kernel": (
        "lfm2",
        parameter("model.layers.0.conv.conv.weight", lambda w, m: w.flip(-1)),
        "model.layers.0.conv",
        "conv.weight is reversed",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_the_first_wrong_module_and_named(models, tmp_path, name):
    kind, fault, module, words = FAULTS[name]
    result = judged(models(kind), tmp_path, fault)
    assert result.wrong and result.wrong[0][0].startswith(module)
    causes = search(result.session, *result.wrong[0], seconds=120)
    assert causes and any(words in f"{cause['what']} ({cause.get('file')})" for cause in causes), causes
    assert all(cause["error_after"] < cause["error_before"] for cause in causes)


def test_a_fault_of_one_pass_is_found_there(models, tmp_path):
    path, state = models("llama"), {"calls": 0}
    model = tiny.load(path)

    def late(module, args, output):
        state["calls"] += 1
        return output * 1.001 if state["calls"] == 3 else None

    model.model.layers[1].self_attn.v_proj.register_forward_hook(late)
    result = Judged(path, record(model, DECODE, tmp_path / "dump.safetensors"))
    assert result.wrong == [("model.layers.1.self_attn.v_proj", 0, 2)]


def test_an_unexplained_fault_and_a_correct_site_have_no_cause(models, tmp_path):
    noise = parameter("model.layers.1.mlp.up_proj.weight", lambda w, m: w + 1e-3 * torch.randn_like(w))
    result = judged(models("llama"), tmp_path, noise)
    assert result.wrong == [("model.layers.1.mlp.up_proj", 0, 0)]
    (answer,) = search(result.session, *result.wrong[0], seconds=60)
    assert answer["message"] == "facts"
    assert search(result.session, "model.layers.0.self_attn.o_proj", 0, 0, seconds=60) == []


def test_modules_are_listed_in_the_order_of_execution(models, tmp_path):
    result = judged(models("llama"), tmp_path)
    classes = {module["path"]: module["class"] for module in result.hello["modules"]}
    layer = "model.layers.0"
    assert classes[layer] == "LlamaDecoderLayer" and classes["model.embed_tokens"] == "Embedding"
    paths = list(classes)
    assert paths.index(f"{layer}.self_attn.q_proj") < paths.index(f"{layer}.self_attn") < paths.index(layer)
    assert paths.index("model.embed_tokens") < paths.index(layer) < paths.index("lm_head")


@pytest.mark.parametrize("wrong", ["", "full_attention", "sliding_attention"])
def test_calls_in_another_order_are_matched_by_their_values(models, tmp_path, wrong, monkeypatch):
    """Gemma 3 rotates for each kind of layer, in the order of a set, which differs between processes."""
    name, load = "model.rotary_emb", Session.load

    def exchanged(session):
        load(session)
        rows = session.dump.rows
        first, second = rows[name, 0, 0], rows[name, 1, 0]
        rows[name, 0, 0] = dataclasses.replace(second, call=0)
        rows[name, 1, 0] = dataclasses.replace(first, call=1)

    monkeypatch.setattr(Session, "load", exchanged)
    fault = attributes(**{f"{wrong}_attention_scaling": lambda value: 0.9 * value}) if wrong else None
    result = judged(models("gemma3_text"), tmp_path, fault)
    rotations = [site for site in result.wrong if site[0] == name]
    assert len(rotations) == bool(wrong) and not result.missing
    assert result.wrong == [] or result.wrong[0][0] == name


@pytest.mark.parametrize(("later", "taken"), [([1.0, 0.7, 0.0], 0), ([1.0, 0.0, 0.0], 1), ([1.0, 0.2, 0.0], 1)])
def test_a_wrong_value_is_not_taken_for_that_of_a_similar_later_call(later, taken):
    """Layers that run several times have similar values, so only a much nearer value is taken out of order."""
    values = [torch.tensor([1.0, 1.0, 0.0]), torch.tensor(later)]
    rows = {("m", at, 0): Row("m", at, 0, (3,), torch.float32, "") for at in range(2)}
    dump = SimpleNamespace(rows=rows, value=lambda row: values[row.call])
    forcing = Forcing(torch.nn.Identity(), dump, Evaluation(), lambda *_: None)
    assert forcing.row("m", 0, torch.tensor([1.0, 0.0, 0.0])).call == taken
