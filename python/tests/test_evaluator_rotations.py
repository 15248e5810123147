"""Causes of wrong rotations: all numbers that explain the same values are named, and no other."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator import attributes, judged  # noqa: E402
from test_evaluator_causes import causes_of  # noqa: E402

from xcheck.evaluator.causes import numbers, rotations, search  # noqa: E402
from xcheck.evaluator.causes.change import FITTED_KEY, ROUND_CONSTANT, UNROUND, Change  # noqa: E402

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FACTOR = "rope_parameters.factor"
SCALING = "`cos = emb.cos() * self.attention_scaling`"


def rope_parameter(name, value):
    """Returns a fault: the rotation of another value of a RoPE parameter."""

    def change(model):
        config = copy.deepcopy(model.config)
        config.rope_parameters[name] = value
        model.model.rotary_emb = type(model.model.rotary_emb)(config)

    return change


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("fault", "words", "rival"),
    [
        (attributes(attention_scaling=lambda value: 0.9 * value), SCALING, FACTOR),
        (rope_parameter("factor", 8.3), FACTOR, SCALING),
    ],
    ids=["attention_scaling", "factor"],
)
def test_a_number_of_yarn_is_named_alone_only_if_it_alone_explains_the_values(
    models, tmp_path, dtype, fault, words, rival
):
    """In a short type, the factor changes hardly more than the attention scale, and some factor has any given scale."""
    assert not judged(models("gpt_oss"), tmp_path, dtype=TYPES[dtype]).wrong
    causes = causes_of(judged(models("gpt_oss"), tmp_path, fault, TYPES[dtype]))
    named = [cause["what"] for cause in causes]
    assert any(words in what for what in named), named
    assert all(words in what or rival in what for what in named), named
    assert len(named) == (1 if dtype == "f32" else 2), named


def test_a_wrong_number_of_one_of_two_rotations_is_named(models, tmp_path):
    kind = "sliding_attention"
    fault = attributes(**{f"{kind}_attention_scaling": lambda value: 0.9 * value})
    (cause,) = causes_of(judged(models("gemma3_text"), tmp_path, fault))
    assert "attention_scaling` is 0.9 " in cause["what"] and f"for {kind} only" in cause["what"], cause
    assert cause["found"] == "0.9"


def change(rank, error=1.0, kind="constant", **flags):
    message = {"kind": kind, "what": f"{kind} {rank}", "key": kind, "error_after": error}
    trial = SimpleNamespace(is_short=flags.pop("is_short", False), has_time=flags.pop("has_time", True))
    return Change(rank, message, trial=trial, confirmed=1, is_number=True, **flags)


def key(rank, **flags):
    return change(rank, kind="config", **flags)


def test_a_round_number_excludes_only_numbers_that_are_not_round():
    assert search.likeliest([key(FITTED_KEY), change(UNROUND, is_vague=True)]) == [key(FITTED_KEY)]
    assert len(search.likeliest([key(FITTED_KEY), change(ROUND_CONSTANT)])) == 2
    assert len(search.likeliest([key(UNROUND, is_vague=True), change(ROUND_CONSTANT)])) == 1
    assert len(search.likeliest([key(UNROUND, is_vague=True), change(ROUND_CONSTANT, is_vague=True)])) == 2


def test_a_key_is_named_in_place_of_the_constant_that_it_sets():
    setting = key(FITTED_KEY, is_vague=True)
    assert search.likeliest([setting, change(ROUND_CONSTANT, is_vague=True, keys=[setting])]) == [setting]


def test_a_key_is_not_called_the_only_cause_if_the_time_is_over(monkeypatch):
    monkeypatch.setattr(search, "NUMBERS", (lambda trial: [], numbers.causes))
    trial, found = SimpleNamespace(has_time=False), [key(UNROUND, is_vague=True)]
    search.rivals(trial, found, [rotations.causes, numbers.causes])
    assert found[0].message["what"].endswith(search.HASTY)
