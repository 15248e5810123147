"""Outputs of modules: encoders, towers and models that also see, and what a dump cannot express."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import xcheck  # noqa: E402
from tiny_models import (  # noqa: E402
    IMAGE,
    PROMPT,
    SIZES,
    SOUND,
    TOWER,
    WORDS,
    bert,
    decoder,
    llama,
    modernbert,
    recorded,
    same_values,
    siglip,
    t5,
    whisper,
)
from xcheck import DumpError  # noqa: E402

# ---------------------------------------------------------------------------------------------------
# Models without tokens, and those that read in both directions.

OTHERS = {
    "bert": (bert, WORDS),
    "bert without padding": (bert, {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}),
    "t5": (t5, {"input_ids": PROMPT, "decoder_input_ids": torch.tensor([[0, 5, 6]])}),
    "bert-base": (lambda: bert("BertModel"), WORDS),
    "modernbert": (modernbert, {name: WORDS[name] for name in ("input_ids", "attention_mask")}),
    "siglip": (siglip, IMAGE),
    "whisper encoder": (lambda: whisper().get_encoder(), SOUND),
    "whisper": (whisper, {**SOUND, "decoder_input_ids": torch.tensor([[1, 5, 6]])}),
    "bool": (bert, {**WORDS, "attention_mask": WORDS["attention_mask"].bool()}),
    "embeddings": (lambda: decoder("lfm2"), {"inputs_embeds": torch.randn(1, 4, 32)}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_inputs_repeat_the_call(tmp_path, name):
    make, inputs = OTHERS[name]
    read, seen = recorded(make(), tmp_path / "d.safetensors", lambda model: model(**inputs))
    same_values(read, seen)
    manifest = read.manifest
    assert "generated" not in manifest
    told = read.inputs(0)
    assert set(told) == set(inputs)
    words = inputs.get("input_ids")
    assert [told["tokens"] for told in manifest["passes"]] == [[] if words is None else words[0].tolist()]
    assert manifest["input"]["tokens"] == ([] if words is None else words[0].tolist())
    again = {key: torch.from_numpy(np.array(value)) for key, value in told.items()}
    again = {key: value.long() if value.dtype == torch.uint32 else value for key, value in again.items()}
    for key, value in again.items():
        assert value.dtype == inputs[key].dtype and torch.equal(value, inputs[key])
    repeated, _ = recorded(make(), tmp_path / "e.safetensors", lambda model: model(**again))
    assert {key: row["sha256"] for key, row in repeated.outputs().items()} == {
        key: row["sha256"] for key, row in read.outputs().items()
    }
    # Other inputs have other outputs.
    last = "input_ids" if words is not None else next(iter(inputs))
    other, _ = recorded(
        make(), tmp_path / "f.safetensors", lambda model: model(**{**again, last: again[last].roll(1, -1)})
    )
    assert other.rows[-1]["sha256"] != read.rows[-1]["sha256"]


def test_the_last_states_are_written_unless_they_are_the_output_of_a_module(tmp_path):
    class Normalised(transformers.BertModel):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found.last_hidden_state = torch.nn.functional.normalize(found.last_hidden_state, dim=-1)
            return found

    torch.manual_seed(0)
    model = Normalised(transformers.BertConfig(vocab_size=64, **TOWER)).eval()
    read, _ = recorded(model, tmp_path / "d", lambda model: model(**WORDS))
    rows = read.outputs()
    np.testing.assert_allclose(np.linalg.norm(read.value(rows["last_hidden_state", 0, 0]), axis=-1), 1, rtol=1e-6)
    plain, _ = recorded(bert("BertModel"), tmp_path / "e", lambda model: model(**WORDS))
    assert set(rows) - set(plain.outputs()) == {("last_hidden_state", 0, 0)}


def test_a_model_that_also_sees_has_the_inputs_of_its_text_model(tmp_path):
    sizes = {**TOWER, "image_size": 16, "patch_size": 8}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**sizes),
        text_config=transformers.LlamaConfig(**SIZES),
        image_token_index=60,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = None
    image = {"input_ids": torch.tensor([[5, 60, 60, 60, 60, 6]]), "pixel_values": IMAGE["pixel_values"]}
    read, seen = recorded(model, tmp_path / "d", lambda model: model(**image), modules=True)
    same_values(read, seen)
    assert list(read.inputs(0)) == ["pixel_values"]
    np.testing.assert_array_equal(read.inputs(0)["pixel_values"], image["pixel_values"])
    made, _ = recorded(
        model, tmp_path / "e", lambda model: model.generate(**image, max_new_tokens=2, do_sample=False), modules=True
    )
    assert made.inputs(0) and not made.inputs(1)  # the image, or what the tower has made of it before the call
    assert made.manifest["generated"][0] == read.manifest["generated"][0]


# ---------------------------------------------------------------------------------------------------
# Refusals.

TWO = torch.tensor([[5, 6], [7, 8]])


def second_text(model) -> None:
    model(PROMPT)
    model(PROMPT)


def assisted(model) -> None:
    model.generate(torch.tensor([[5, 6, 5, 6, 5, 6]]), max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=3)


def decode_alone(model) -> None:
    model(encoder_outputs=model.get_encoder()(**SOUND), decoder_input_ids=torch.tensor([[1, 5]]))


REFUSED = [
    (llama, lambda model: model(TWO), "a batch of 2, expected 1"),
    (llama, second_text, "a second text"),
    (llama, assisted, "generate without assistant_model"),
    (llama, lambda model: model.generate(PROMPT, num_beams=2, max_new_tokens=2), "a batch of 2, expected 1"),
    (bert, lambda model: model(TWO), "a batch of 2, expected 1"),
    (siglip, lambda model: model(IMAGE["pixel_values"].repeat(3, 1, 1, 1)), "a batch of 3, expected 1"),
    (siglip, lambda model: [model(**IMAGE), model(**IMAGE)], "a second time without tokens"),
    (whisper, decode_alone, "called with encoder_outputs"),
    (llama, lambda model: None, "was not called inside the hook"),
    (llama, lambda model: model(PROMPT, position_ids=torch.arange(7)[None] * 2), "position 2, expected 1"),
]


@pytest.mark.parametrize(("make", "run", "message"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_what_a_dump_cannot_express_is_refused_at_the_end(tmp_path, make, run, message):
    reached = []
    with pytest.raises(DumpError, match=message):
        recorded(make(), tmp_path / "d", lambda model: [run(model), reached.append(True)], modules=True)
    assert reached, "the model's call is never interrupted"
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modules": "*.nothing"}, r"'\*\.nothing' matches no module of LlamaForCausalLM"),
        ({"modules": True, "also": ("k_cache",)}, r"also=\('k_cache',\) names taps"),
        ({"modules": True, "map": {"embed": "input of model.layers.0"}}, "give one of the two"),
        ({"modules": ("lm_head",), "only": ("lm_head",)}, "give one of the two"),
        ({"modules": True, "only": ("block_out",)}, "'block_out' matches no module"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path, options, message):
    with pytest.raises(DumpError, match=message), xcheck.hook(llama(), tmp_path / "d", **options):
        pass
    assert not (tmp_path / "d").exists()


def test_hooks_change_nothing_and_are_gone_afterwards(tmp_path):
    model = decoder("qwen3_next", "bf16", "sdpa")
    with torch.no_grad():
        before = model(PROMPT).logits
        with xcheck.hook(model, tmp_path / "d"):
            during = model(PROMPT).logits
    assert torch.equal(before, during)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
