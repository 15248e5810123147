"""Choices that rounding decides otherwise: the values of each of them pass, and values that no choice gives do not."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
DynamicCache = pytest.importorskip("transformers").DynamicCache
pytest.importorskip("safetensors")

import test_evaluator_taps as taps  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from test_evaluator import PASSES, Judged, parameter  # noqa: E402
from test_evaluator_causes import halves  # noqa: E402
from test_evaluator_ties import SCORES, choices  # noqa: E402

import tiny  # noqa: E402
from module_recorder import record  # noqa: E402
from xcheck.evaluator.bounds import violations  # noqa: E402
from xcheck.evaluator.causes.search import search  # noqa: E402
from xcheck.evaluator.evaluation import Session  # noqa: E402
from xcheck.evaluator.other_choices import OtherChoices, Outputs, another, around, is_cache, marked  # noqa: E402
from xcheck.evaluator.ties import Choice  # noqa: E402
from xcheck.evaluator.tracked import fresh  # noqa: E402

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
    model = biased(path, bias, *([fault] if fault is not None else []), dtype=dtype)
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
    """If rounding cannot change a token's experts, its rows are judged, also inside the experts."""
    result = judged(tied, -3e-7, fault=parameter(f"{BLOCK}.experts.gate_up_proj", halves))
    assert result.wrong[0][0] == f"{BLOCK}.experts.act_fn"


@pytest.mark.parametrize("bias", [3e-7, -3e-7])
def test_a_wrong_value_of_a_tied_token_that_does_not_depend_on_the_choice_is_wrong(tied, bias):
    shared, chosen = f"{BLOCK}.shared_experts", []

    def fault(model):
        def change(module, args, output):
            is_tied = ((chosen[0] == 1) | (chosen[0] == 2)).sum(-1) == 1
            return output * torch.where(is_tied, 1.01, 1.0).view(1, -1, 1)

        model.get_submodule(f"{BLOCK}.gate").register_forward_hook(lambda *args: chosen.append(args[-1][2]))
        model.get_submodule(shared).register_forward_hook(change)

    assert judged(tied, bias, only={*FEW, shared}, fault=fault).wrong == [(shared, 0, 0)]


def test_a_block_runs_again_once_for_each_other_choice(tied, monkeypatch):
    runs = []
    run = OtherChoices.run
    monkeypatch.setattr(OtherChoices, "run", lambda *args: runs.append(args[1:]) or run(*args))
    found = [judged(tied, bias) for bias in (3e-7, -3e-7)]
    assert 0 < len(runs) == len(set(runs)) and not any(result.wrong for result in found), runs


def biased(path, bias, *faults, dtype=torch.float32):
    """Returns a candidate with faults, whose router adds `bias` to the score of expert 2."""
    model = tiny.load(path, dtype)
    model.get_buffer(f"{BLOCK}.gate.e_score_correction_bias")[2] += bias
    with torch.no_grad():
        for fault in faults:
            fault(model)
    return model


@pytest.mark.parametrize("bias", [3e-7, -3e-7])
def test_taps_are_forced_when_a_block_runs_again(tied, bias):
    """With the recorded value of a wrong tap, later values are explained, whichever experts are chosen."""
    model = biased(tied, bias, parameter(f"{BLOCK}.shared_experts.down_proj.weight", lambda w, m: 1.1 * w))
    dump, shared = tied / "dump.safetensors", []
    model.get_submodule(f"{BLOCK}.shared_experts").register_forward_hook(lambda *args: shared.append(args[-1]))
    record(model, PASSES, dump, only={f"{BLOCK}.gate", BLOCK})
    with safe_open(dump, "pt") as file:
        manifest, tensors = json.loads(file.metadata()["xcheck"]), {name: file.get_tensor(name) for name in file.keys()}
    tensors["shared"] = shared[0][0]
    row = {"tap": "shared_out", "layer": 1, "pass": 0, "dtype": "f32", "file": "shared"}
    manifest["tensors"].append({**row, "shape": list(tensors["shared"].shape)})
    save_file(tensors, dump, {"xcheck": json.dumps(manifest)})
    session, found = Session(str(tied), str(dump), 4), []
    session.load()
    session.run(lambda message, arrays: found.append((message, arrays)))
    sites = {message.get("module", message.get("tap")): at for at, (message, arrays) in enumerate(found) if arrays}
    assert sorted(sites) == sorted([f"{BLOCK}.gate", "shared_out", BLOCK])
    arrays, stored = found[sites[BLOCK]][1], session.dump.value(session.dump.rows[BLOCK, 0, 0])
    assert violations(stored, arrays["exact"], arrays["sigma"]) == 0


@pytest.mark.parametrize("bias", [3e-7, -3e-7])
def test_the_cause_is_found_with_the_recorded_experts(tied, bias):
    values = {}

    def keep(module, args, output):
        if isinstance(output, tuple):
            values.update(router_logits=output[0], expert_weights=output[1], experts=output[2].int())
        else:
            values["routed_out"] = output

    model = biased(tied, bias, parameter(f"{BLOCK}.experts.down_proj", lambda w, m: w[[3, 1, 2, 0]]))
    for name in ("gate", "experts"):
        model.get_submodule(f"{BLOCK}.{name}").register_forward_hook(keep)

    def write(dump):
        for tap, value in values.items():
            dump.tap(tap, value, layer=1)

    result = taps.Judged(tied, taps.record(model, tied / "dump.safetensors", PASSES, extra=write))
    assert result.wrong[0] == ("routed_out", 1, 0)
    row = result.session.outputs[result.wrong[0]]
    (cause,) = search(result.session.with_modules(), *row.site, seconds=60)
    assert "experts 0 and 3 of" in cause["what"], cause


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


@pytest.mark.parametrize(
    ("found", "ended", "expected"), [(1, True, True), (2, True, False), (1, False, False), (None, True, False)]
)
def test_a_value_depends_on_the_choice_unless_every_other_choice_gives_it(found, ended, expected):
    others = OtherChoices(None, None, None)
    value = torch.ones(3, dtype=torch.float64)
    made = [] if found is None else [(found * value, value)]
    others.runs = [Outputs()] * len(made) + [None if ended else Outputs()]
    others.outputs = lambda row, choices: iter(made)
    assert others.is_the_same(None, value, []) == expected


class Zeros(torch.nn.Module):
    """Passes no value on."""

    def forward(self, x):
        return fresh(torch.zeros_like(x.exact), x.dtype)


def of_experts(*modules):
    """A run with an experts module of two tokens."""
    evaluation = nullcontext()
    evaluation.on_tie = None
    x = fresh(torch.ones(2, 4, dtype=torch.float64), torch.float32)
    path, model = "experts", torch.nn.Module()
    model.experts = torch.nn.Sequential(*modules)
    model.experts.num_experts = 3
    return SimpleNamespace(model=model, evaluation=evaluation, paused=False, given={path: ((x,), {})},
                           calls={f"{path}.0": 1}, calls_of={(f"{path}.0", 0): [0, 1]}, order_of_rows=None)  # fmt: skip


def test_modules_that_do_not_pass_nan_on_show_no_dependence():
    tied = torch.tensor([False, True])
    (mask,) = marked(of_experts(torch.nn.Identity()), "experts", tied).values()
    assert mask.any(-1).tolist() == [False, True]
    assert marked(of_experts(torch.nn.Identity(), Zeros()), "experts", tied) == {}


@pytest.mark.parametrize("untied", [1, 0])
def test_calls_are_compared_only_if_each_choice_calls_the_same_experts(untied):
    """The tied token has expert 1 or 2. Expert 1 is called in either case if the untied token has it."""
    tied, of = torch.tensor([False, True]), torch.tensor
    must = torch.nn.functional.one_hot(of([untied, 0]), 3).bool() & ~tied.unsqueeze(-1)
    may = of([[False] * 3, [False, True, untied == 0]])
    choice = Choice("gate", tied, of([[untied], [1]]), must, may, tied)
    row = SimpleNamespace(module="experts.0", pass_number=0, shape=(2, 4))
    mask = OtherChoices(of_experts(torch.nn.Identity()), None, None).undetermined(row, [choice], 2)
    assert (mask is not None) == (untied == 1)
