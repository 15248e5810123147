"""Readers of causes: each names its fault and nothing else, and a correct twin has no wrong value."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator import attributes, judged, parameter  # noqa: E402

import tiny  # noqa: E402
from xcheck.evaluator.call import Arguments  # noqa: E402
from xcheck.evaluator.causes import results  # noqa: E402
from xcheck.evaluator.causes.search import search  # noqa: E402
from xcheck.evaluator.causes.trial import Trial  # noqa: E402
from xcheck.evaluator.causes.weights import orders  # noqa: E402

BF16 = torch.bfloat16
LAYER = "model.layers.1"


def forward(path, make):
    """Returns a fault: another forward function of a module."""

    def change(model):
        module = model.get_submodule(path)
        module.forward = make(module)

    return change


def every(kind, make):
    """Returns a fault: another forward function of all modules of a class."""

    def change(model):
        for module in model.modules():
            if type(module).__name__ == kind:
                module.forward = make(module)

    return change


def over_all_tokens(norm):
    def run(x):
        wide = x.float()
        variance = wide.pow(2).mean((-1, -2), keepdim=True)
        return norm.weight * (wide * torch.rsqrt(variance + norm.variance_epsilon)).to(x.dtype)

    return run


def bias_in_weights(router):
    def run(hidden):
        logits = torch.nn.functional.linear(hidden.view(-1, hidden.shape[-1]).float(), router.weight.float())
        scores = logits.sigmoid() + router.e_score_correction_bias
        parts = scores.view(len(scores), router.num_group, -1)
        best = parts.topk(2, -1).values.sum(-1).topk(router.topk_group, -1).indices
        mask = torch.zeros(parts.shape[:2]).scatter_(1, best, 1).bool()[..., None]
        chosen = parts.masked_fill(~mask, -torch.inf).flatten(1).topk(router.top_k, -1).indices
        picked = scores.gather(1, chosen)
        return logits, picked / (picked.sum(-1, keepdim=True) + 1e-20) * router.routed_scaling_factor, chosen

    return run


def interleaved(model):
    for layer in model.model.layers:
        for weight in (layer.mlp.experts.gate_up_proj, layer.mlp.experts.gate_up_proj_bias):
            order = torch.arange(weight.shape[-1]).view(2, -1).T.flatten()
            weight.copy_(weight[..., order])


def shards(weight, model):
    return weight.view(2, 2, 2, -1).transpose(0, 1).reshape(weight.shape)


def columns(weight, model):
    return weight[:, 0].T.reshape(len(weight), 1, -1)


def folder_of(models, tmp_path, kind):
    """Returns a model's directory. `biased` is a DeepSeek V3 whose routers prefer some experts."""
    if kind != "biased":
        return models(kind)
    model = tiny.load(models("deepseek_v3"))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.tensor([0.1, -0.05, 0.02, -0.1]))
    model.save_pretrained(tmp_path / kind)
    return tmp_path / kind


# model, fault, words of the cause, kind of the cause
FAULTS = {
    "axes": ("llama", every("LlamaRMSNorm", over_all_tokens), "over the axes [1, 2], expected [2]", "operation"),
    "activation": (
        "llama",
        every("SiLUActivation", lambda m: torch.nn.functional.gelu),
        "hidden_act of config.json is read as gelu",  # or gelu_new, which bf16 cannot tell from it
        "config",
    ),
    "constant output": (
        "llama",
        forward(f"{LAYER}.mlp.gate_proj", lambda m: lambda x: torch.full((*x.shape[:-1], len(m.weight)), 3.0).to(x)),
        "gate_proj is left out: every value of its output is 3",
        "operation",
    ),
    "another value": ("biased", every("DeepseekV3TopkRouter", bias_in_weights), "scores_for_choice", "operation"),
    "rows": (
        "llama",
        parameter(
            f"{LAYER}.self_attn.k_proj.weight", lambda w, m: w.view(2, 4, 2, -1).transpose(1, 2).reshape(w.shape)
        ),
        "k_proj.weight are in",
        "weight",
    ),
    "weight and bias": ("gpt_oss", interleaved, "gate_up_proj and of its bias are read as interleaved", "weight"),
    "sinks": (
        "gpt_oss",
        parameter(f"{LAYER}.self_attn.sinks", lambda w, m: torch.full_like(w, -1e4)),
        "sinks is not a part of the softmax",
        "weight",
    ),
    "convolution": ("lfm2", parameter("model.layers.0.conv.conv.weight", columns), "read column by column", "weight"),
}


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_reader_names_its_fault(models, tmp_path, name, dtype):
    kind, fault, words, group = FAULTS[name]
    path = folder_of(models, tmp_path, kind)
    twin = judged(path, tmp_path, dtype=dtype)
    assert not twin.wrong
    assert search(twin.session, *twin.sites[-1], seconds=20) == []
    result = judged(path, tmp_path, fault, dtype)
    assert result.wrong
    causes = search(result.session, *result.wrong[0], seconds=120)
    assert causes and all(words in cause["what"] and cause["kind"] == group for cause in causes), causes


def test_a_fault_that_no_change_explains_has_no_cause(models, tmp_path):
    fault = parameter(f"{LAYER}.self_attn.k_proj.weight", lambda w, m: w * (1 + torch.arange(w.numel()).view_as(w) % 7))
    result = judged(models("llama"), tmp_path, fault)
    (answer,) = search(result.session, *result.wrong[0], seconds=60)
    assert answer["message"] == "facts" and "times the expected" not in answer["text"], answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: y[..., :8].mul_(1.25), ["heads 0 of 2", "each is 1.25 times the expected value"]),
        (lambda y: y[:, 3:5, 2].add_(0.5), ["rows 3 to 4 of 10", "channels 2 of 16", "larger than expected by 0.5"]),
        (lambda y: y[..., 3:].zero_(), ["channels 3 to 15 of 16", "all of them are 0"]),
        (lambda y: y[0, 1, 1:3].fill_(torch.nan), ["2 of 160 values are wrong", "not all of them are finite"]),
    ],
)
def test_facts_are_told_if_no_change_explains_the_values(models, tmp_path, change, words):
    def fault(model):
        module = model.get_submodule(f"{LAYER}.self_attn.k_proj")
        module.register_forward_hook(lambda m, args, output: (change(output), output)[1])

    result = judged(models("llama"), tmp_path, fault)
    (answer,) = search(result.session, *result.wrong[0], seconds=60)
    assert answer["message"] == "facts" and all(word in answer["text"] for word in words), answer


def test_recorded_modules_are_bypassed_and_nothing_else(models, tmp_path):
    result = judged(models("llama"), tmp_path, attributes(scaling=0.5))
    trial = Trial(result.session, "logits", 0, 0, seconds=60)
    assert {f"{LAYER}.mlp", LAYER, "model.norm"} <= set(trial.bypass.calls)
    assert not {"", "model", "logits"} & set(trial.bypass.calls)
    assert "model.rotary_emb" not in trial.bypass.calls  # it returns two tensors, of which one is recorded
    assert trial.before.violations == 0  # with the recorded values, the logits are right
    assert all("forward" not in vars(module) for module in result.session.model.modules())


def test_orders_are_permutations():
    for what, order in orders(24, {2, 3}, True):
        assert sorted(order.tolist()) == list(range(24)), what


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 2, 1, 3], "as 2 x 2 with the axes in the order 1, 0"),
        ([0, 1, 4, 5, 2, 3, 6, 7], "as 2 x 2 x 2 with the axes in the order 1, 0, 2"),
        ([1, 0, 2, 3, 4], "1, 0, 2, 3, 4"),
    ],
)
def test_an_order_of_rows_is_described(order, words):
    assert results.shown(order) == words


def test_arguments_are_put_together_as_they_were():
    args, kwargs = (1, [2, None], (3,), "x"), {"dim": [4, 5], "keepdim": True}
    leaves, form = Arguments.flattened(args, kwargs)
    assert leaves == [1, 2, None, 3, "x", 4, 5, True]
    assert form.filled(leaves) == (args, kwargs)
