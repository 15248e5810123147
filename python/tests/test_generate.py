"""The hook around the ways in which transformers generates: a dump that is right, or one sentence why there is none."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import make_v2_dumps as made  # noqa: E402
import xcheck  # noqa: E402
from reader import Reader  # noqa: E402
from xcheck import DumpError  # noqa: E402

EVERYTHING = ("k_cache", "v_cache", "attn_weights")
PROMPT = torch.tensor([made.PROMPTS[0]])
REPEATING = torch.tensor([[1, 5, 6, 7, 5, 6, 7, 5, 6]])


def generate(model, ids=PROMPT, **options) -> None:
    model.generate(ids, **{"max_new_tokens": 8, "do_sample": False, **options})


def assistant(model):
    """A model that is like another, and often of another opinion."""
    other = copy.deepcopy(model)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * 0.05)
    return other


def with_assistant(model) -> None:
    generate(model, assistant_model=assistant(model))


def with_lookup(model) -> None:
    generate(model, REPEATING, prompt_lookup_num_tokens=3)


def with_early_exit(model) -> None:
    generate(model, assistant_early_exit=1)


def static(model) -> None:
    generate(model, cache_implementation="static", max_new_tokens=20)


def static_batch(model) -> None:
    model.generate(**made.padded(made.PROMPTS), max_new_tokens=12, do_sample=False, cache_implementation="static")


def static_padded(model) -> None:
    one = {name: rows[:1] for name, rows in made.padded(made.PROMPTS[1:2] + made.PROMPTS[:1]).items()}
    model.generate(**one, max_new_tokens=4, do_sample=False, cache_implementation="static")


def static_twice(model) -> None:
    generate(model, cache_implementation="static")
    static_batch(model)


def masks_of_all_heads(model) -> None:
    """A mask that says what each row sees, given to the model itself."""
    batch = made.padded(made.PROMPTS[:3])
    mask = batch["attention_mask"].bool()
    seen = torch.ones(mask.shape[1], mask.shape[1]).tril().bool() & mask[:, None, None]
    position = (mask.long().cumsum(1) - 1).clamp(min=0)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    model(input_ids=batch["input_ids"], attention_mask=added, position_ids=position)


def latest_logits(model) -> None:
    model(PROMPT, logits_to_keep=3)


def in_a_tuple(model) -> None:
    model(PROMPT, return_dict=False)


def compiled(model) -> None:
    model.compile(backend="eager")
    generate(model)


def another_suffix(model, cut: int = 2, batch: int = 1) -> None:
    """A cache that is cut back to the prompt, and goes on with other tokens."""
    cache = transformers.DynamicCache(config=model.config)
    model(PROMPT.repeat(batch, 1), past_key_values=cache)
    model(torch.tensor([[40, 41]] * batch), past_key_values=cache)
    cache.crop(-cut)
    model(torch.tensor([[50, 51]] * batch), past_key_values=cache)


def another_end(model) -> None:
    another_suffix(model, cut=1, batch=2)


RIGHT = [
    (with_assistant, "tiny-llama3"),
    (with_assistant, "tiny-gemma3"),
    (with_lookup, "tiny-llama3"),
    (with_lookup, "tiny-gemma3"),
    (with_early_exit, "tiny-llama3"),
    (static, "tiny-llama3"),
    (static, "tiny-gemma3"),
    (static_batch, "tiny-llama3"),
    (static_batch, "tiny-gemma3"),
    (static_padded, "tiny-llama3"),
    (static_twice, "tiny-gemma3"),
    (masks_of_all_heads, "tiny-llama3"),
    (latest_logits, "tiny-llama3"),
    (in_a_tuple, "tiny-llama3"),
    (compiled, "tiny-llama3"),
    (another_suffix, "tiny-llama3"),
    (another_end, "tiny-llama3"),
]


@pytest.mark.parametrize("also", [(), EVERYTHING], ids=["usual", "all"])
@pytest.mark.parametrize(("use", "name"), RIGHT, ids=lambda part: getattr(part, "__name__", part))
def test_what_a_hook_sees_of_a_right_model_passes(tmp_path, judge, use, name, also):
    model = made.load(name)
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors", also=also):
        use(model)
    code, output = judge("check", name, "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output


@pytest.mark.parametrize(("use", "where"), [(with_lookup, "ffn_out, layer 2"), (static_batch, "ffn_out, layer 2")])
def test_a_planted_fault_is_found_there_too(tmp_path, judge, use, where):
    model = made.load("tiny-llama3")
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[5, 7] += 0.5
        with xcheck.hook(model, tmp_path / "dump.safetensors", also=EVERYTHING):
            use(model)
    code, output = judge("check", "tiny-llama3", "--candidate", tmp_path / "dump.safetensors")
    assert code == 1, output
    tap, layer = where.split(", ")
    assert f"{tap}, {layer}" in output


def test_drafts_that_were_turned_down_are_rows_of_no_sequence(tmp_path):
    model = made.load("tiny-llama3")
    with torch.no_grad():
        whole = model.generate(REPEATING, max_new_tokens=8, do_sample=False)[0].tolist()
        with xcheck.hook(model, tmp_path / "dump"):
            with_lookup(model)
    manifest = Reader(tmp_path / "dump").manifest
    rejected = [current["sequence"].count(None) for current in manifest["passes"]]
    assert sum(rejected) > 0
    kept = [
        token
        for current in manifest["passes"]
        for token, owner in zip(current["tokens"], current["sequence"])
        if owner == 0
    ]
    assert kept[: len(whole)] == whole[: len(kept)]
    (sequence,) = manifest["input"]["sequences"]
    assert sequence["decode"] == "forced"
    assert kept[: len(sequence["tokens"])] == sequence["tokens"]


def test_the_keys_of_a_static_cache_are_those_that_were_written(tmp_path):
    model = made.load("tiny-llama3")
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump", also=EVERYTHING):
        static(model)
    read = Reader(tmp_path / "dump")
    for index in range(len(read.manifest["passes"])):
        length = PROMPT.shape[1] + index
        assert read.find("k_cache", index, 1)["shape"][0] == length
        assert read.find("v_cache", index, 1)["shape"][0] == length
        assert read.find("attn_weights", index, 1)["shape"][-1] == length


@pytest.mark.parametrize(("use", "rows"), [(latest_logits, [9, 10, 11]), (in_a_tuple, None)])
def test_logits_of_some_rows_or_without_a_name_are_written(tmp_path, use, rows):
    model = made.load("tiny-llama3")
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump"):
        use(model)
    row = Reader(tmp_path / "dump").find("logits", 0)
    assert row is not None
    assert row.get("rows") == rows
    assert row["shape"] == [3 if rows else 12, 512]


def test_beams_that_are_never_read_again_are_a_batch(tmp_path, judge):
    model = made.load("tiny-llama3")
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump.safetensors"):
        generate(model, num_beams=2, max_new_tokens=1)
    code, output = judge("check", "tiny-llama3", "--candidate", tmp_path / "dump.safetensors")
    assert code == 0, output


# ---------------------------------------------------------------------------------------------------
# What is refused.


def beams(model) -> None:
    generate(model, num_beams=3)


def moved(model, method: str, how) -> None:
    cache = transformers.DynamicCache(config=model.config)
    model(PROMPT.repeat(2, 1), past_key_values=cache)
    getattr(cache, method)(how)
    entries = cache.layers[0].keys.shape[0]
    model(torch.tensor([[40]] * entries), past_key_values=cache)


def copied(model) -> None:
    cache = transformers.DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    model(torch.tensor([[40]]), past_key_values=copy.deepcopy(cache))


def quantized(model) -> None:
    generate(model, cache_implementation="quantized", cache_config={"backend": "fp8"})


def raised(model) -> None:
    handle = model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(PROMPT)
    handle.remove()
    model(PROMPT)


def paged(model) -> None:
    """As continuous batching calls a model: in a thread, where nobody hears what it says."""
    model(PROMPT, read_index=[torch.tensor([0])])


def without_layers(model) -> None:
    forward = model.forward
    model.forward = lambda input_ids: transformers.modeling_outputs.CausalLMOutput(logits=torch.ones(1, 12, 512))
    try:
        model(input_ids=PROMPT)
    finally:
        model.forward = forward


REFUSED = [
    (beams, "as in beam search.*num_beams=1"),
    (lambda model: moved(model, "reorder_cache", torch.tensor([1, 0])), "moved or repeated"),
    (lambda model: moved(model, "batch_select_indices", torch.tensor([1])), "moved or repeated"),
    (lambda model: moved(model, "batch_repeat_interleave", 2), "moved or repeated"),
    (copied, "a copy of another.*the whole text"),
    (lambda model: another_suffix(model, cut=4), "cut back by 4 tokens.*latest pass"),
    (quantized, "the cache is quantized.*leave cache_implementation"),
    (raised, "left by an exception"),
    (paged, "continuous batching"),
    (lambda model: model.model(PROMPT), "was not called inside the hook"),
    (without_layers, "no layer of the model called its hooks"),
]


@pytest.mark.parametrize(("use", "message"), REFUSED)
def test_what_a_dump_cannot_say_is_refused_and_leaves_nothing(tmp_path, use, message):
    model = made.load("tiny-llama3")
    with pytest.raises(DumpError, match=message), torch.no_grad():
        with xcheck.hook(model, tmp_path / "dump.safetensors"):
            use(model)
    assert not list(tmp_path.iterdir())


def test_a_cache_whose_entries_stay_where_they_are_goes_on(tmp_path):
    model = made.load("tiny-llama3")
    with torch.no_grad(), xcheck.hook(model, tmp_path / "dump"):
        moved(model, "reorder_cache", torch.tensor([0, 1]))
    assert len(Reader(tmp_path / "dump").manifest["passes"]) == 2
