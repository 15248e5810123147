"""Choices that rounding decides otherwise: the values of each of them pass, and values that no choice gives do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
DynamicCache = pytest.importorskip("transformers").DynamicCache
pytest.importorskip("safetensors")

from test_evaluator import PASSES, Judged, parameter  # noqa: E402
from test_evaluator_causes import halves  # noqa: E402
from test_evaluator_ties import SCORES, choices  # noqa: E402

import tiny  # noqa: E402
from module_recorder import record  # noqa: E402
from xcheck.evaluator.other_choices import OtherChoices, another, around, is_cache  # noqa: E402

BLOCK = "model.layers.1.mlp"  # chooses experts, which its router does not return
FEW = {"model.layers.0", f"{BLOCK}.gate", f"{BLOCK}.experts", BLOCK, "logits"}


@pytest.fixture
def tied(models, tmp_path):
    """A model with two experts that no token can tell apart by their scores."""
    model = tiny.load(models("glm4_moe"))
    weight = model.get_parameter(f"{BLOCK}.gate.weight").data
    weight[1] = weight[2]
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def judged(path, bias, dtype=torch.float32, only=None, fault=None):
    """Judges a run in which the score of expert 2 is larger by a number."""
    model = tiny.load(path, dtype)
    model.get_buffer(f"{BLOCK}.gate.e_score_correction_bias")[2] += bias
    if fault is not None:
        with torch.no_grad():
            fault(model)
    return Judged(path, record(model, PASSES, path / "dump.safetensors", only=only))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("only", [None, FEW], ids=["all", "few"])
def test_either_choice_passes(tied, dtype, only):
    """Rounding may choose the one or the other of two experts with equal scores."""
    for bias in (3e-7, -3e-7):
        result = judged(tied, bias, dtype, only)
        assert not result.wrong and not result.missing
        assert not result.tied or only is None  # rows that are sorted by expert may be those of other tokens


def test_a_choice_that_rounding_cannot_make_is_wrong(tied):
    assert judged(tied, -1.0, only=FEW).wrong


@pytest.mark.parametrize("bias", [3e-7, -3e-7])
def test_wrong_experts_are_wrong_in_either_choice(tied, bias):
    def exchange(model):
        weight = model.get_parameter(f"{BLOCK}.experts.down_proj")
        weight.copy_(weight[[2, 1, 0, 3]])

    result = judged(tied, bias, only=FEW, fault=exchange)
    assert result.wrong[0][0].startswith(f"{BLOCK}.experts")


def test_a_fault_inside_the_experts_is_found_there_if_tokens_are_tied(tied):
    """The rows of tokens whose experts are certain are judged, also inside of the experts."""
    result = judged(tied, -3e-7, fault=parameter(f"{BLOCK}.experts.gate_up_proj", halves))
    assert result.wrong[0][0] == f"{BLOCK}.experts.act_fn"


def test_a_block_runs_again_once_for_each_other_choice(tied, monkeypatch):
    runs = []
    run = OtherChoices.run
    monkeypatch.setattr(OtherChoices, "run", lambda *args: runs.append(args[1:]) or run(*args))
    found = [judged(tied, bias) for bias in (3e-7, -3e-7)]
    assert 0 < len(runs) == len(set(runs)) and not any(result.wrong for result in found), runs


def test_the_other_choices_of_tied_rows_are_listed():
    (choice,) = choices(SCORES, 1e-8)
    first = another(choice, 0)
    assert first is not None and first[[0, 2]].tolist() == choice.indices[[0, 2]].tolist()
    assert {tuple(sorted(row)) for row in (first[1].tolist(), choice.indices[1].tolist())} == {(0, 1), (0, 2)}
    assert another(choice, 1) is None


def test_the_smallest_module_around_several_is_run_again():
    assert around(["m.layers.1.mlp.experts", "m.layers.1.mlp.gate"]) == "m.layers.1.mlp"
    assert around(["m.layers.1.mlp", "m.layers.1.mlp.gate"]) == "m.layers.1.mlp"
    assert around(["lm_head", "m.layers.1"]) == ""


def test_caches_are_recognised_also_if_a_model_has_a_class_of_its_own():
    class HybridDynamicCache:
        pass

    assert is_cache(DynamicCache()) and is_cache(HybridDynamicCache()) and not is_cache(torch.ones(2))
