"""Causes: the changed number, weight, key or operation is named, and no other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator import DECODE, PASSES, Judged, attributes, judged, parameter  # noqa: E402

from module_recorder import record  # noqa: E402
from xcheck.evaluator.causes import numbers  # noqa: E402
from xcheck.evaluator.causes.change import Change, Run  # noqa: E402
from xcheck.evaluator.causes.confirmation import confirmed  # noqa: E402
from xcheck.evaluator.causes.keys import read_entries  # noqa: E402
from xcheck.evaluator.causes.round_numbers import bounds, chosen, decimals  # noqa: E402
from xcheck.evaluator.causes.search import HASTY, likeliest, search  # noqa: E402
from xcheck.evaluator.causes.trial import Trial  # noqa: E402

BF16 = torch.bfloat16


def causes_of(result, seconds=120):
    assert result.wrong
    return search(result.session, *result.wrong[0], seconds=seconds)


@pytest.mark.parametrize(
    ("low", "high", "is_addend", "value"),
    [
        (0.0046, 0.0053, True, 0.005),
        (0.0046, 0.0064, True, None),  # 0.005 and 0.006
        (0.268, 0.281, False, None),  # 0.27 and 0.28
        (0.308, 0.3165, False, None),  # 0.31 may be 0.3125
        (0.3122, 0.3127, False, None),  # 0.3125 may be 0.31245
        (0.31249, 0.31251, False, 0.3125),
        (0.8999, 0.9001, False, 0.9),
        (1.0999999, 1.1000001, False, 1.1),
    ],
)
def test_a_number_is_named_only_if_it_is_the_only_round_one(low, high, is_addend, value):
    number = chosen(low, high, [], is_addend)
    assert number.value == value
    assert value is not None or number.words == f"{low:.3g} to {high:.3g}"


def test_an_expression_of_the_sizes_competes_with_a_round_number():
    forms = [("1/sqrt(8)", 8**-0.5)]
    assert chosen(0.346, 0.3545, forms, False).value is None
    assert chosen(0.35, 0.354, forms, False).value is None
    named = chosen(8**-0.5 - 1e-7, 8**-0.5 + 1e-7, forms, False)
    assert named.phrase == "0.353553 = 1/sqrt(8)"


def test_a_key_that_the_code_reads_under_another_name_is_tried():
    from transformers import KimiLinearConfig
    from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForCausalLM

    model = KimiLinearForCausalLM.__new__(KimiLinearForCausalLM)
    torch.nn.Module.__init__(model)
    model.config = KimiLinearConfig()
    keys = dict(read_entries(SimpleNamespace(model=model)))
    assert keys["moe_renormalize",] is True  # the code reads `norm_topk_prob`
    assert ("bos_token_id",) not in keys


def test_the_range_of_numbers_that_fit_is_bisected():
    low, high = bounds(lambda value: 0.0046 <= value <= 0.0053, 0.005)
    assert 0.0046 <= low < 0.00461 and 0.00529 < high <= 0.0053
    assert decimals(0.268, 0.281, 2)[0] == [0.27, 0.28]


@pytest.mark.parametrize(("kind", "found"), [("llama", 0.005), ("gemma3_text", 0.01)])
def test_the_eps_of_norms_is_named_in_bf16(models, tmp_path, kind, found):
    name = "variance_epsilon" if kind == "llama" else "eps"
    first = causes_of(judged(models(kind), tmp_path, attributes(**{name: found}), BF16))
    assert first and all(f"{found:g}" in cause["found"] for cause in first), first
    assert all(
        cause["key"] == "rms_norm_eps" and cause["file"] == f"modeling_{kind.split('_')[0]}.py" for cause in first
    )


@pytest.mark.parametrize(
    ("scale", "dtype"), [(0.275, BF16), (0.3125, BF16), (8**-0.5 * 1.25, torch.float32), (0.275, torch.float32)]
)
def test_a_scale_is_named_or_its_range(models, tmp_path, scale, dtype):
    for cause in causes_of(judged(models("llama"), tmp_path, attributes(scaling=scale), dtype)):
        found = [float(number) for number in cause["found"].split(" to ")]
        assert cause["kind"] == "constant" and "scaling" in cause["what"], cause
        exact = 1e-3 if dtype == torch.float32 else 0.0
        assert found[0] * (1 - exact) <= scale <= found[-1] * (1 + exact) or found == [pytest.approx(scale, 1e-5)], (
            cause
        )


def test_one_cause_of_a_scale_is_found(models, tmp_path):
    (cause,) = causes_of(judged(models("llama"), tmp_path, attributes(scaling=0.3125)))
    assert cause["found"] == "0.3125" and cause["line"] > 0


def skipped(path):
    """Returns a fault: a module that returns its input."""
    return lambda model: model.get_submodule(path).register_forward_hook(lambda m, args, output: args[0]) and None


def later(model):
    """Shifts the positions after the first pass by one."""

    def hook(module, args, kwargs):
        given = kwargs["position_ids"]
        return (args, {**kwargs, "position_ids": given + 1}) if given.shape[-1] == 1 else None

    model.model.rotary_emb.register_forward_pre_hook(hook, with_kwargs=True)


def theta(model):
    rotary = model.model.rotary_emb
    steps = torch.arange(0, 8, 2).float() / 8
    rotary.inv_freq.copy_(1 / 11000.0**steps)


def halves(weight, model):
    first, second = weight.chunk(2, 1)
    return torch.cat([second, first], 1)


EXPERTS = "model.layers.1.mlp.experts"
FAULTS = {
    "a norm left out": ("llama", skipped("model.layers.1.input_layernorm"), {}, "input_layernorm is left out"),
    "a norm left out in bf16": ("llama", skipped("model.layers.1.input_layernorm"), {"dtype": BF16}, "is left out"),
    "positions": ("llama", later, {"passes": DECODE}, "after the first pass are too large by 1"),
    "theta": ("llama", theta, {}, "rope_theta of config.json is read as 11000 (expected 10000)"),
    "halves": ("deepseek_v3", parameter(f"{EXPERTS}.gate_up_proj", halves), {}, "gate_up_proj are exchanged"),
    "bias of experts": (
        "gpt_oss",
        parameter("model.layers.1.mlp.experts.down_proj_bias", lambda b, m: 0 * b),
        {},
        "down_proj_bias is not added",
    ),
    "experts exchanged": (
        "deepseek_v3",
        parameter(f"{EXPERTS}.down_proj", lambda w, m: w[[1, 0, 2, 3]]),
        {},
        "experts 0 and 1 of",
    ),
    "scale in bf16": ("llama", attributes(scaling=0.5), {"dtype": BF16}, "scaling` is"),
    "residual in bf16": (  # the factor of the embedding explains the first layer as well
        "granitemoehybrid",
        attributes(residual_multiplier=0.9),
        {"dtype": BF16},
        "residual_multiplier",
    ),
    "frequencies": (
        "llama",
        lambda model: model.model.rotary_emb.inv_freq.copy_(model.model.rotary_emb.inv_freq.bfloat16()),
        {},
        "inv_freq is rounded to bf16",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_injected_fault_is_the_only_cause(models, tmp_path, name):
    kind, fault, options, words = FAULTS[name]
    assert not judged(models(kind), tmp_path, **options).wrong
    causes = causes_of(judged(models(kind), tmp_path, fault, **options))
    assert causes and all(words in cause["what"] for cause in causes), causes


def test_exchanged_layer_types_are_named(models, tmp_path):
    import transformers

    path = models("gemma3_text")
    config = transformers.AutoConfig.from_pretrained(path)
    config.layer_types = config.layer_types[::-1]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, config=config, attn_implementation="eager").eval()
    causes = causes_of(Judged(path, record(model, PASSES, tmp_path / "dump.safetensors")))
    assert [cause["key"] for cause in causes] == ["layer_types"], causes


def test_a_change_that_breaks_other_layers_is_not_confirmed(models, tmp_path):
    """In layer 0 alone, eps and the addend of the weight could explain a norm; only one explains all layers."""
    result = judged(models("llama"), tmp_path, attributes(variance_epsilon=1e-3))
    trial = Trial(result.session, *result.wrong[0], seconds=60)
    constant = next(c for c in numbers.constants_of(trial) if c.operation == "add")
    right, wrong = numbers.changed(constant, 1e-3), numbers.changed(constant, 1.2e-3)
    for change in (right, wrong):
        change.message = {"kind": "constant"}
    assert confirmed(trial, right) and not confirmed(trial, wrong)


def test_a_fault_of_one_layer_is_not_called_one_of_the_configuration(models, tmp_path):
    def fault(model):
        model.model.layers[1].input_layernorm.variance_epsilon = 1e-3

    (cause,) = causes_of(judged(models("llama"), tmp_path, fault))
    assert cause["kind"] == "constant" and cause["found"] == "0.001" and "variance_epsilon" in cause["what"]


def test_no_hook_stays_on_the_model_if_one_cannot_be_registered():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    run = Run(model, None, None, frozenset(["0", "1"]))

    def make(path, module):
        if path == "1":
            raise AttributeError(path)
        return module.register_forward_hook(lambda *_: None)

    with pytest.raises(AttributeError), run.hooks(make):
        pass
    assert not model[0]._forward_hooks


def test_changes_without_time_for_a_confirmation_are_not_taken():
    trial = SimpleNamespace(end=0.0, unconfirmed=[])
    change = Change(0, {"error_after": 1.0, "what": "a constant"}, trial=trial)
    assert likeliest([change]) == [] and trial.unconfirmed


def number(error, found, end=float("inf"), confirmed=1):
    trial = SimpleNamespace(end=end, unconfirmed=[], is_short=True)
    told = {"error_after": error, "what": f"the number is {found}", "key": found, "kind": "config"}
    return Change(1, told, trial=trial, confirmed=confirmed, is_number=True, is_vague=True)


def test_numbers_that_explain_as_much_are_listed_by_their_error():
    """A number that is found twice counts by its smallest error."""
    found = [number(1.5, "a"), number(1.2, "b"), number(1.1, "a")]
    assert [change.message["error_after"] for change in likeliest(found)] == [1.1, 1.2]


def test_a_cause_says_that_another_had_no_time_for_a_confirmation():
    alone = likeliest([number(1.0, "a")])
    (named,) = likeliest([number(1.0, "a"), number(1.1, "b", end=0.0, confirmed=None)])
    assert HASTY in named.message["what"] and HASTY not in alone[0].message["what"]
