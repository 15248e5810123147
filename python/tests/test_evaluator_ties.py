"""Choices that rounding decides, caches, masks of fixed size and autocast: correct runs pass, wrong values do not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator import PASSES, Judged  # noqa: E402

import tiny  # noqa: E402
from module_recorder import record  # noqa: E402
from xcheck.evaluator import evaluation  # noqa: E402
from xcheck.evaluator.candidate import autocast_of, open_dump  # noqa: E402
from xcheck.evaluator.errors import EvaluatorError  # noqa: E402
from xcheck.evaluator.rounding import Evaluation  # noqa: E402
from xcheck.evaluator.ties import Choice, Ties, tied_tokens, unknown_choice  # noqa: E402
from xcheck.evaluator.tracked import Settings, fresh  # noqa: E402


def choices(scores, sigma: float, count: int = 2) -> list[Choice]:
    """Returns the ties of a top-k of scores with errors."""
    found = []
    run = Evaluation(Settings(2))
    run.on_tie = lambda choice, chosen_from: found.append(choice)
    exact = torch.tensor(scores, dtype=torch.float64)
    tracked = fresh(exact, torch.float32, torch.full_like(exact, sigma**2))
    with torch.no_grad(), run:
        tracked.topk(count, dim=-1)
    return found


SCORES = [[4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 3.0 + 1e-9, 1.0], [1.0, 2.0, 3.0, 4.0]]


def test_only_rows_with_equal_scores_are_tied():
    (choice,) = choices(SCORES, 1e-8)
    assert choice.tied.tolist() == [False, True, False]
    assert choice.may[1].tolist() == [False, True, True, False] and choice.must[1].tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert not choice.may[0].any() and not choices(SCORES, 1e-12)


def test_a_choice_that_rounding_can_make_is_taken_over_and_no_other():
    (choice,) = choices(SCORES, 1e-8)
    ties = Ties(torch.nn.Linear(1, 1))
    ties.open = [choice]
    exact = choice.indices.double()
    good = torch.tensor([[1, 0], [0, 1], [3, 2]])  # another order; another choice among equals; the same
    assert torch.equal(ties.chosen(good, exact), good.double())
    bad = torch.tensor([[0, 2], [3, 0], [3, 3]])
    assert bool((ties.chosen(bad, exact) != bad.double()).any(-1).all())


def test_values_of_other_tokens_are_judged_until_attention_mixes_tokens():
    ties = Ties(torch.nn.ModuleDict({"attention": torch.nn.MultiheadAttention(4, 1)}))
    (choice,) = choices(SCORES, 1e-8)
    choice.path = "mlp.gate"
    ties.note(choice, chosen_from=4, tokens=3)
    value = torch.zeros(1, 3, 5)
    assert ties.undetermined("mlp", value, 3).flatten().tolist() == [False, True, False]
    assert ties.undetermined("mlp", value[0], 3).flatten().tolist() == [False, True, False]
    assert ties.undetermined("mlp.experts.act_fn", value[0], 3).dim() == 0
    ties.left("attention")
    assert ties.undetermined("next", value, 3).dim() == 0
    assert ties.take("mlp") == [choice] and ties.undetermined("next", value, 3) is None


def test_the_axis_of_tokens_has_to_be_certain():
    tied = torch.tensor([[True, False], [False, False], [False, False]])
    assert tied_tokens(tied, 4, 3).tolist() == [True, False, False]
    assert tied_tokens(tied, 3, 3) is None  # a choice among tokens
    assert tied_tokens(tied, 4, 5) is None
    assert tied_tokens(tied[:2], 4, 2) is None


def test_a_wrong_value_of_an_untied_token_is_wrong(models, tmp_path):
    model = tiny.load(models("llama"))
    session = Judged(models("llama"), record(model, PASSES, tmp_path / "dump.safetensors")).session
    above = torch.tensor([[True], [False]])
    message: dict = {}
    assert session.decide(message, above, torch.tensor([[False], [True]]), 0) and not message
    assert not session.decide(message, above, torch.tensor([[True], [False]]), 0) and message == {"tie": True}
    routers = [f"model.layers.{layer}.mlp.gate" for layer in (0, 1)]
    for paths, named in (([*routers, "model.layers.1.mlp"], "model.layers.*.mlp.gate"), (routers[:1], routers[0])):
        session.ties.open = [unknown_choice(path) for path in paths]
        assert not session.decide(message, above, torch.tensor([[True], [False]]), 0) and message["choice"] == named


def test_a_single_pass_with_a_cache_is_evaluated_with_one(models, tmp_path, monkeypatch):
    seen = []
    old = evaluation.call
    monkeypatch.setattr(evaluation, "call", lambda *a, **o: seen.append(o["use_cache"]) or old(*a, **o))
    model = tiny.load(models("llama"))
    for settings in ({"kv_cache": "f32"}, {}):
        assert not Judged(models("llama"), record(model, PASSES, tmp_path / "d.safetensors", settings=settings)).wrong
    assert seen == [True, False]


def test_a_mask_of_a_cache_of_fixed_size_is_cut_to_the_keys():
    mask = torch.tensor([[[[True, True, False, False]]]])
    cut = evaluation.with_present_keys({"attention_mask": mask}, 2)["attention_mask"]
    assert cut.tolist() == [[[[True, True]]]]
    for other in (mask.clone().fill_(True), mask[0, 0]):
        assert evaluation.with_present_keys({"attention_mask": other}, 2)["attention_mask"] is other
    numbers = torch.where(mask, 0.0, -3e38)
    assert evaluation.with_present_keys({"attention_mask": numbers}, 2)["attention_mask"].shape[-1] == 2


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_autocast_is_evaluated_if_it_is_stated(models, tmp_path, kind):
    model = tiny.load(models(kind))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        paths = [
            record(model, PASSES, tmp_path / f"{at}.safetensors", settings=settings)
            for at, settings in enumerate(({"autocast": "bf16", "device": "cpu"}, {}))
        ]
    with_it, without = (Judged(models(kind), path) for path in paths)
    assert not with_it.wrong and not with_it.missing and without.wrong
    assert open_dump(str(paths[0])).autocast == torch.bfloat16 and open_dump(str(paths[1])).autocast is None


def test_autocast_of_other_devices_and_types_is_refused():
    assert autocast_of({"rounding": {"like": "bf16-autocast"}}) == torch.bfloat16
    for settings in ({"autocast": "bf16", "device": "cuda"}, {"autocast": "int8"}):
        with pytest.raises(EvaluatorError):
            autocast_of({"settings": settings})
