"""A torch model is judged while it runs."""

from __future__ import annotations

import pytest

import xcheck
from conftest import CHECKPOINTS

transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
HF = CHECKPOINTS / "tiny-llama3" / "hf"
TOKENS = [[1, 33, 35, 60, 34, 86, 63]]

pytestmark = pytest.mark.usefixtures("program")


@pytest.fixture
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(HF, dtype=torch.float32)


def generate(model):
    model.generate(torch.tensor(TOKENS), max_new_tokens=3, do_sample=False)


def test_a_right_model_passes(model, tmp_path):
    with xcheck.checked(model, report=tmp_path) as checked:
        generate(model)
    assert checked.report.passed
    assert checked.report.path == tmp_path


def test_a_wrong_model_fails_with_its_cause(model):
    for layer in model.model.layers:
        layer.self_attn.scaling = 1.0
    with xcheck.checked(model) as checked:
        generate(model)
    assert checked.report.first_divergence["tap"] == "attn_context"
    assert [cause.name for cause in checked.report.causes] == ["attn_scale"]


def test_the_files_of_the_model_may_be_named(model):
    model.name_or_path = ""
    with pytest.raises(xcheck.UsageError, match="files="), xcheck.checked(model):
        pass
    with xcheck.checked(model, "tiny-llama3") as checked:
        generate(model)
    assert checked.report.passed


def test_a_block_that_raises_is_not_judged(model):
    with pytest.raises(KeyError), xcheck.checked(model) as checked:
        raise KeyError
    with pytest.raises(xcheck.UsageError, match="after the `with` block"):
        _ = checked.report
