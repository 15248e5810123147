"""Hooks on torch models: what a batch shows of a sequence is what that sequence shows alone."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import make_v2_dumps as made  # noqa: E402
import xcheck  # noqa: E402
from reader import Reader  # noqa: E402
from xcheck import DumpError  # noqa: E402
from xcheck.hook import rope_pairing  # noqa: E402

MODELS = ["tiny-llama2", "tiny-qwen3", "tiny-gemma3", "tiny-gpt2"]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """All that the script makes."""
    out = tmp_path_factory.mktemp("dumps")
    made.main(out)
    return lambda name: Reader(next(out.glob(f"{name}.safetensors"), out / name))


def same_sequences(read: Reader, alone, tolerance: float, only_prompt: bool = False) -> int:
    """Compares every tap of every sequence with that of a dump of the sequence alone; how many."""
    compared = 0
    for sequence in range(len(read.manifest["input"].get("sequences", [0]))):
        single = alone(sequence)
        for tap, layer in dict.fromkeys((row["tap"], row.get("layer")) for row in single.rows):
            if tap in ("last_logits", "argmax", "logits") or not any(row["tap"] == tap for row in read.rows):
                continue
            ours, theirs = read.of_sequence(sequence, tap, layer), single.of_sequence(0, tap, layer)
            np.testing.assert_allclose(
                ours, theirs[: len(ours)], rtol=tolerance, atol=tolerance, err_msg=f"{tap} {layer}"
            )
            assert only_prompt or len(ours) == len(theirs)
            compared += 1
    return compared


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["batch", "packed", "continuous", "batch-fused"])
def test_a_sequence_among_others_is_that_sequence_alone(dumps, name, kind):
    if name == "tiny-gpt2" and kind == "packed":
        pytest.skip("the masks of GPT-2 know no packing")
    if kind == "batch-fused" and name != "tiny-gpt2":
        pytest.skip("nothing is fused")
    read = dumps(f"{name}-{kind}")
    assert read.manifest["version"] == 2
    compared = same_sequences(
        read, lambda sequence: dumps(f"{name}-alone-{sequence}"), 2e-4, only_prompt=kind == "packed"
    )
    assert compared > 40
    for sequence, told in enumerate(read.manifest["input"]["sequences"]):
        assert told["tokens"] == made.PROMPTS[sequence]
        alone = dumps(f"{name}-alone-{sequence}").manifest
        assert told["generated"] == alone["generated"][: 1 if kind == "packed" else None]


@pytest.mark.parametrize("name", ["tiny-llama2", "tiny-qwen3", "tiny-gpt2"])
def test_keys_of_a_batch_are_those_of_its_entries(dumps, name):
    read, alone = dumps(f"{name}-batch-caches"), dumps(f"{name}-alone-weights")
    for index in range(made.DECODE):
        row = read.find("attn_weights", index, 1)
        assert row["axes"] == ["batch", "head", "token", "key"]
        single = alone.value(alone.find("attn_weights", index, 1))
        np.testing.assert_allclose(read.value(row)[0], single, rtol=1e-4, atol=1e-4)
        assert read.find("k_cache", index, 1)["shape"][:2] == [4, single.shape[-1]]


def test_each_prompt_with_a_cache_of_its_own_says_its_keys(dumps):
    read = dumps("tiny-llama2-one-after-the-other")
    passes = read.manifest["passes"]
    first = [current.get("keys") for current in passes[: made.DECODE]]
    assert first == [None] * made.DECODE
    last = passes[-1]["keys"]
    assert last == {"sequence": [1] * 10, "position": list(range(10))}
    assert read.find("attn_weights", len(passes) - 1, 0)["shape"] == [4, 1, 10]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["by-layer", "by-head", "fused", "rows", "f8", "computed"])
def test_other_forms_hold_the_same_values(dumps, name, kind):
    if kind == ("fused" if name != "tiny-gpt2" else "by-head"):
        pytest.skip("another model's")
    read = dumps(f"{name}-{kind}")
    single = dumps(f"{name}-alone-{'bf16' if kind == 'computed' else '0'}")
    assert read.manifest["version"] == 2
    for row in read.rows:
        value, wanted = read.value(row), single.find(row["tap"], row["pass"], row.get("layer"))
        if wanted is None:
            assert kind == "rows"
            continue
        expected = single.value(wanted)
        if "rows" in row:
            expected = expected[row["rows"]]
        tolerance = 0.15 if row["dtype"].startswith("f8") else 0
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max() / 50)
    features = {"by-layer": "#", "by-head": '"of"', "fused": '"of"', "rows": '"rows"', "f8": '"scale"'}
    assert features.get(kind, '"computed"') in str(read.rows).replace("'", '"')


def test_sequences_that_end_before_others_go_on_as_padding(tmp_path):
    model = made.load("tiny-llama2")
    with torch.inference_mode():
        plain = model.generate(**made.padded(made.PROMPTS), max_new_tokens=4, do_sample=False)
    end = int(plain[1, -3])  # what the second sequence generates second
    model.generation_config.eos_token_id = end
    made.batch(model, tmp_path / "d")
    read = Reader(tmp_path / "d")
    sequences = read.manifest["input"]["sequences"]
    assert [len(told["generated"]) for told in sequences] == [4, 3, 4, 4]  # the end itself is read once more
    assert sequences[1]["generated"][1] == end
    assert not any("decode" in told for told in sequences)
    assert read.manifest["passes"][-1]["sequence"] == [0, None, 2, 3]
    row = read.find("last_logits", 3)
    assert row["shape"] == [3, 512]


def test_one_prompt_that_is_padded_is_one_sequence(tmp_path):
    model = made.load("tiny-llama2")
    ids, mask = torch.tensor([[3, 3, 1, 17]]), torch.tensor([[0, 0, 1, 1]])
    with torch.inference_mode(), xcheck.hook(model, tmp_path / "d"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False)
    manifest = Reader(tmp_path / "d").manifest
    assert manifest["version"] == 2
    assert manifest["passes"][0]["sequence"] == [None, None, 0, 0]
    assert manifest["input"]["sequences"][0]["tokens"] == [1, 17]


def test_tokens_that_the_model_did_not_choose_are_forced(tmp_path):
    model = made.load("tiny-llama2")
    with torch.inference_mode(), xcheck.hook(model, tmp_path / "d") as dump:
        cache = made.cache_of(model(input_ids=torch.tensor([[1, 2, 3]])))
        model(input_ids=torch.tensor([[4, 5]]), past_key_values=cache)
    assert isinstance(dump, xcheck.Dump)
    manifest = Reader(tmp_path / "d").manifest
    assert manifest["version"] == 1
    assert manifest["input"] == {"decode": "forced", "tokens": [1, 2, 3]}
    assert manifest["passes"][1] == {"position": 3, "tokens": [4, 5]}
    assert "generated" not in manifest


def test_hooks_change_nothing_and_are_gone_afterwards(tmp_path):
    model = made.load("tiny-qwen3")
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        before = model(input_ids=ids).logits
        update = transformers.cache_utils.Cache.update
        with xcheck.hook(model, tmp_path / "d"):
            during = model(input_ids=ids).logits
        assert transformers.cache_utils.Cache.update is update
        model(input_ids=ids)
    assert torch.equal(before, during)
    assert len(Reader(tmp_path / "d").manifest["passes"]) == 1
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_autocast_is_said(tmp_path):
    model, ids = made.load("tiny-llama3"), torch.tensor([[1, 2, 3]])

    def producer(name):
        return Reader(tmp_path / name).manifest["producer"]

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), xcheck.hook(model, tmp_path / "cast"):
        model(input_ids=ids)
    assert producer("cast")["settings"]["dtype"] == "f32"
    assert producer("cast")["rounding"] == {"like": "bf16-autocast"}
    with torch.inference_mode(), xcheck.hook(model, tmp_path / "plain"):
        model(input_ids=ids)
    assert "rounding" not in producer("plain")


def test_only_what_was_asked_for_is_written(tmp_path):
    model = made.load("tiny-llama2")
    made.alone(model, [1, 2], tmp_path / "d", only=("block_out", "logits", "attn_weights"))
    taps = {row["tap"] for row in Reader(tmp_path / "d").rows}
    assert taps == {"block_out", "logits", "attn_weights"}
    made.alone(made.load("tiny-gpt2"), [1, 2], tmp_path / "fused", only=("q",))
    assert {row["tap"] for row in Reader(tmp_path / "fused").rows} == {"q", "k", "v"}


def test_positions_that_count_other_than_padding_are_refused(tmp_path):
    model = made.load("tiny-llama2")
    batch = made.padded(made.PROMPTS)
    position = torch.arange(batch["input_ids"].shape[1])[None] * 2
    with pytest.raises(DumpError, match="Padding does not count"), torch.inference_mode():
        with xcheck.hook(model, tmp_path / "d"):
            model(**batch, position_ids=position)


def test_calls_without_token_ids_are_refused(tmp_path):
    model = made.load("tiny-llama2")
    embeds = model.model.embed_tokens(torch.tensor([[1, 2]]))
    with pytest.raises(DumpError, match="give it input_ids"), xcheck.hook(model, tmp_path / "d"):
        model(inputs_embeds=embeds)


def test_a_cache_that_was_filled_before_is_refused(tmp_path):
    model = made.load("tiny-llama2")
    ids = torch.tensor([[1, 2]])
    cache = made.cache_of(model(input_ids=ids))
    with pytest.raises(DumpError, match="was filled before the hook"), xcheck.hook(model, tmp_path / "d"):
        model(input_ids=ids, past_key_values=cache)


# ---------------------------------------------------------------------------------------------------
# Models of one's own.


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.wo(self.wqkv(x)[..., 32:])


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = torch.nn.Linear(16, 24), torch.nn.Linear(24, 16), torch.nn.Linear(16, 24)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = torch.nn.LayerNorm(16), Attention()
        self.ffn_norm, self.feed_forward = torch.nn.LayerNorm(16), FeedForward()
        self.gadget = torch.nn.Linear(16, 16)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = torch.nn.Embedding(9, 16)
        self.layers = torch.nn.ModuleList(Block() for _ in range(3))
        self.norm, self.output = torch.nn.LayerNorm(16), torch.nn.Linear(16, 9)

    def forward(self, tokens, start_pos=0):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


GUESSED = {
    "embed": "input of layers.0",
    "attn_norm": "output of layers.*.attention_norm",
    "attn_residual": "input of layers.*.ffn_norm",
    "ffn_norm": "output of layers.*.ffn_norm",
    "qkv": "output of layers.*.attention.wqkv",
    "attn_out": "output of layers.*.attention.wo",
    "attn_context": "input of layers.*.attention.wo",
    "ffn_gate": "output of layers.*.feed_forward.w1",
    "ffn_up": "output of layers.*.feed_forward.w3",
    "ffn_out": "output of layers.*.feed_forward.w2",
    "ffn_act": "input of layers.*.feed_forward.w2",
    "block_out": "output of layers.*",
    "final_norm": "output of norm",
    "logits": "output of output",
}


def test_a_map_is_guessed_and_says_what_it_could_not_place():
    guessed = xcheck.guess_map(Mine())
    assert dict(guessed) == GUESSED
    assert guessed.unplaced == ["layers.*.gadget"]
    assert "(no tap)       layers.*.gadget" in str(guessed)


def test_a_model_of_ones_own_is_watched_with_a_map(tmp_path):
    model = Mine()
    with pytest.raises(DumpError, match=r"print\(xcheck.guess_map\(model\)\)"):
        with xcheck.hook(model, tmp_path / "d", modules=False):
            pass
    heads = {"architecture": "llama", "n_heads": 2, "n_kv_heads": 2, "head_dim": 8}
    with torch.no_grad(), xcheck.hook(model, tmp_path / "d", GUESSED, producer="mine", **heads):
        choice = int(model(torch.tensor([[1, 2, 3]]))[0, -1].argmax())
        model(torch.tensor([[choice]]), start_pos=3)
    read = Reader(tmp_path / "d")
    assert read.manifest["version"] == 1
    assert read.manifest["generated"][0] == choice
    assert [current["position"] for current in read.manifest["passes"]] == [0, 3]
    assert {row["tap"] for row in read.rows} >= {"q", "k", "v", "logits", "last_logits", "argmax", "embed"}
    v = read.value(read.find("v", 0, 2))
    np.testing.assert_array_equal(v.reshape(3, 16), read.value(read.find("attn_context", 0, 2)))


@pytest.mark.parametrize(
    ("family", "norms", "last"),
    [
        (
            "olmo2",
            {"attn_post_norm": "post_attention_layernorm", "ffn_post_norm": "post_feedforward_layernorm"},
            "mlp.down_proj",
        ),
        (
            "glm4",
            {"attn_post_norm": "post_self_attn_layernorm", "ffn_norm": "post_attention_layernorm"},
            "mlp.down_proj",
        ),
        ("cohere", {"attn_norm": "input_layernorm"}, "mlp.down_proj"),
        ("opt", {"attn_norm": "self_attn_layer_norm", "ffn_norm": "final_layer_norm"}, "fc2"),
    ],
)
def test_maps_of_other_families_are_guessed_by_their_names(family, norms, last):
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, head_dim=8, pad_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(family, **sizes))
    guessed = xcheck.guess_map(model)
    for tap, name in norms.items():
        assert guessed[tap].endswith(f".*.{name}")
    assert guessed["ffn_out"].endswith(f".*.{last}")
    assert guessed["attn_context"].startswith("input of ")
    assert guessed.unplaced == []


@pytest.mark.parametrize(
    ("family", "pairing"),
    [
        ("llama", "half"),
        ("cohere", "interleaved"),  # rotate_half of its own
        ("cohere2_moe", "interleaved"),
        ("gptj", "interleaved"),  # rotate_every_two
        ("llama4_text", "interleaved"),  # complex numbers
        ("deepseek_v2", "interleaved"),
        ("deepseek_v3", "interleaved"),  # neighbours become halves first
        ("gpt2", None),
        ("bloom", None),
    ],
)
def test_the_pairs_of_rope_are_found_in_the_models_code(family, pairing):
    config = transformers.AutoConfig.for_model(family, num_hidden_layers=1, pad_token_id=0)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert rope_pairing(model) == pairing
    config.rope_interleave = False
    assert rope_pairing(model) == ("half" if family == "deepseek_v3" else pairing)


@pytest.mark.parametrize("name", MODELS)
def test_transformers_families_need_no_guess(name):
    guessed = xcheck.guess_map(made.load(name))
    assert guessed.unplaced == []
    assert guessed["block_out"].startswith("output of ")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"attn_norm": "layers.0"}, "is no place: write 'output of model.layers"),
        ({"attn_norm": "output of layers.*.nothing"}, "the model has no module layers"),
        ({"attn_norm": "output of a.*.b.*"}, "more than one '\\*'"),
        ({"nothing": "output of norm"}, "there is no tap 'nothing'"),
    ],
)
def test_maps_that_fit_nothing_are_refused(tmp_path, place, message):
    with pytest.raises(DumpError, match=message), xcheck.hook(Mine(), tmp_path / "d", place, architecture="llama"):
        pass
