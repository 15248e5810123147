"""Outputs of modules: models of any architecture, without a map."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import xcheck  # noqa: E402
from reader import Reader  # noqa: E402
from xcheck import DumpError  # noqa: E402

SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SIZES |= dict(intermediate_size=48, max_position_embeddings=64, head_dim=8)
MIXED = dict(num_experts_per_tok=2, moe_intermediate_size=16)
DECODERS = {
    "deepseek_v3": dict(
        **{**{name: size for name, size in SIZES.items() if name != "head_dim"}, "num_key_value_heads": 4},
        **MIXED,
        **dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8),
        **dict(n_routed_experts=4, n_group=2, topk_group=1, first_k_dense_replace=1),
    ),
    "gpt_oss": dict(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    "qwen3_next": dict(
        **SIZES,
        **MIXED,
        **dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8),
        **dict(num_experts=4, shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"]),
    ),
    "granitemoehybrid": dict(
        **SIZES,
        **dict(layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8),
        **dict(num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48, logits_scaling=4.0),
    ),
    "lfm2": dict(**SIZES, layer_types=["conv", "full_attention"]),
    "mamba2": dict(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=1
    ),
}
TOWER = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
PROMPT = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
WORDS = {"input_ids": torch.tensor([[5, 6, 7, 8, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0]])}
WORDS["token_type_ids"] = torch.tensor([[0, 0, 1, 1, 0, 0]])
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def decoder(kind: str, dtype: str = "f32", attention: str = "eager", experts: str = "eager"):
    """A tiny model of an architecture that the package has no map of."""
    config = transformers.AutoConfig.for_model(kind, **DECODERS[kind])
    config._experts_implementation = experts
    torch.manual_seed(0)
    can = {} if kind == "mamba2" or (kind, attention) == ("gpt_oss", "sdpa") else {"attn_implementation": attention}
    model = transformers.AutoModelForCausalLM.from_config(config, **can).eval()
    model.generation_config.eos_token_id = None
    return model.to(DTYPES[dtype])


def bert(kind: str = "BertForMaskedLM"):
    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(vocab_size=64, **TOWER)).eval()


def modernbert():
    config = transformers.ModernBertConfig(vocab_size=64, pad_token_id=0, **TOWER, attn_implementation="sdpa")
    torch.manual_seed(0)
    return transformers.ModernBertModel(config).eval()


def siglip():
    torch.manual_seed(0)
    return transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**TOWER, image_size=16, patch_size=8)).eval()


def whisper():
    sizes = dict(d_model=32, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=48, num_mel_bins=8)
    sizes |= dict(decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=48, vocab_size=64, pad_token_id=0)
    config = transformers.WhisperConfig(**sizes, max_source_positions=10, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    return transformers.WhisperForConditionalGeneration(config).eval()


class Seen:
    """What plain forward hooks see: the outputs of each module, by path, pass and call."""

    def __init__(self, model):
        self.model, self.passes, self.values, self.calls, self.handles = model, -1, {}, Counter(), []

    def __enter__(self):
        self.handles = [self.model.register_forward_pre_hook(self.begin)]
        for path, module in self.model.named_modules():
            self.handles.append(module.register_forward_hook(lambda m, i, result, path=path: self.see(path, result)))
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def begin(self, *_):
        self.passes += 1
        self.calls.clear()

    def see(self, path, result):
        call, self.calls[path] = self.calls[path], self.calls[path] + 1
        if not path and hasattr(result, "logits"):
            path, result = "logits", result.logits
        elif isinstance(result, dict):
            result = result.last_hidden_state
        value = result[0] if isinstance(result, tuple) else result
        if path and isinstance(value, torch.Tensor):
            self.values[path, self.passes, call] = value.detach().clone()


def same_values(read: Reader, seen: Seen) -> None:
    """The dump has every value that was seen, and no other."""
    rows = read.outputs()
    assert set(rows) == set(seen.values)
    for key, row in rows.items():
        assert row["shape"] == list(seen.values[key].shape)
        np.testing.assert_array_equal(read.value(row), seen.values[key].float().numpy(), err_msg=str(key))


def recorded(model, out, run, **options) -> tuple[Reader, Seen]:
    """What a hook writes of a run, and what plain hooks see of the same run."""
    with torch.no_grad(), Seen(model) as seen, xcheck.hook(model, out, **options):
        run(model)
    return Reader(out), seen


def generate(model) -> None:
    model.generate(PROMPT, max_new_tokens=3, do_sample=False)


# ---------------------------------------------------------------------------------------------------
# Decoders.


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", DECODERS)
def test_a_dump_has_every_output_of_every_module(tmp_path, kind, dtype, attention):
    model = decoder(kind, dtype, attention)
    read, seen = recorded(model, tmp_path / "d.safetensors", generate)
    same_values(read, seen)
    manifest = read.manifest
    assert manifest["version"] == 1
    assert manifest["model"]["architecture"] == kind
    assert manifest["model"]["class"] == type(model).__name__
    assert manifest["producer"]["settings"]["dtype"] == dtype
    assert manifest["producer"]["settings"]["attention"] == model.config._attn_implementation
    assert {row["dtype"] for row in read.rows} <= {dtype, "f32"}
    assert dtype in {row["dtype"] for row in read.rows}
    assert manifest["input"] == {"decode": "greedy", "tokens": PROMPT[0].tolist()}
    assert [told["position"] for told in manifest["passes"]] == [0, 7, 8]
    read_then = [told["tokens"] for told in manifest["passes"][1:]]
    assert manifest["generated"][:2] == [token for tokens in read_then for token in tokens]
    assert "inputs" not in manifest  # all arguments follow from the tokens
    assert read.rows[0]["file"].startswith("p0/") and not read.rows[0]["file"].endswith(".npy")


@pytest.mark.parametrize("kind", DECODERS)
def test_a_prompt_alone_has_logits_of_all_rows(tmp_path, kind):
    read, seen = recorded(decoder(kind), tmp_path / "d", lambda model: model(PROMPT))
    same_values(read, seen)
    assert read.outputs()["logits", 0, 0]["shape"] == [1, 7, 64]


def test_calls_of_a_module_are_numbered(tmp_path):
    read, seen = recorded(decoder("granitemoehybrid"), tmp_path / "d", lambda model: model(PROMPT))
    path = "model.layers.0.block_sparse_moe.experts.act_fn"
    calls = [row["call"] for row in read.rows if row["module"] == path]
    assert calls == list(range(len(calls))) and len(calls) > 1
    same_values(read, seen)


def test_wrappers_share_the_array_of_the_module_inside(tmp_path):
    read, _ = recorded(decoder("lfm2"), tmp_path / "d", lambda model: model(PROMPT))
    rows = read.outputs()
    assert rows["logits", 0, 0]["file"] == rows["lm_head", 0, 0]["file"] == "p0/lm_head.npy"
    assert rows["model.layers.0.conv", 0, 0]["file"] == rows["model.layers.0.conv.out_proj", 0, 0]["file"]
    # Granite divides its logits: they are not the head's.
    other, _ = recorded(decoder("granitemoehybrid"), tmp_path / "e", lambda model: model(PROMPT))
    rows = other.outputs()
    assert rows["logits", 0, 0]["file"] != rows["lm_head", 0, 0]["file"]
    np.testing.assert_allclose(
        other.value(rows["logits", 0, 0]) * 4, other.value(rows["lm_head", 0, 0]), rtol=1e-6, atol=1e-6
    )


def test_values_changed_in_place_afterwards_are_those_of_their_time(tmp_path):
    class Doubles(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.up = torch.nn.Embedding(16, 4), torch.nn.Linear(4, 4)

        def forward(self, tokens):
            return self.up(self.tok(tokens)).mul_(2)

    read, _ = recorded(Twice(Doubles()), tmp_path / "d", lambda model: model(PROMPT))
    rows = read.outputs()
    assert rows["inner", 0, 0]["file"] != rows["inner.up", 0, 0]["file"]
    np.testing.assert_array_equal(read.value(rows["inner", 0, 0]), 2 * read.value(rows["inner.up", 0, 0]))


class Twice(torch.nn.Module):
    """Calls a module twice, and adds."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tokens):
        return self.inner(tokens) + self.inner(tokens.flip(-1))


def test_a_fault_changes_its_module_and_those_after_it(tmp_path):
    def outputs(name, model):
        read, _ = recorded(model, tmp_path / name, lambda model: model(PROMPT))
        return {key[0]: read.value(row) for key, row in read.outputs().items()}

    right, twin, faulty = decoder("deepseek_v3"), decoder("deepseek_v3"), decoder("deepseek_v3")
    faulty.model.layers[1].self_attn.kv_a_layernorm.weight.data *= 1.01
    right, twin, faulty = outputs("a", right), outputs("b", twin), outputs("c", faulty)
    assert not differing(right, twin)
    wrong = differing(right, faulty)
    assert wrong[0] == "model.layers.1.self_attn.kv_a_layernorm" and "logits" in wrong
    assert "model.layers.1.self_attn.kv_a_proj_with_mqa" not in wrong


def differing(right: dict, other: dict) -> list[str]:
    assert list(right) == list(other)
    return [path for path in right if not np.array_equal(right[path], other[path])]


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_generation_with_caches_is_one_text(tmp_path, cache):
    def run(model):
        model.generate(PROMPT, max_new_tokens=3, do_sample=False, cache_implementation=cache)

    for kind in ("gpt_oss", "deepseek_v3"):
        read, seen = recorded(decoder(kind), tmp_path / kind, run)
        same_values(read, seen)
        assert [told["position"] for told in read.manifest["passes"]] == [0, 7, 8]


def test_tokens_that_were_given_are_forced(tmp_path):
    def run(model):
        cache = model(PROMPT).past_key_values
        model(torch.tensor([[4, 3]]), past_key_values=cache)

    read, _ = recorded(decoder("qwen3_next"), tmp_path / "d", run)
    assert read.manifest["input"]["decode"] == "forced"
    assert read.manifest["passes"][1] == {"position": 7, "tokens": [4, 3]}


def test_a_recurrent_cache_goes_on_and_one_that_was_filled_before_is_refused(tmp_path):
    model = decoder("mamba2")
    cache = []

    def run(model):
        cache.append(model(PROMPT, use_cache=True).cache_params)
        model(torch.tensor([[4]]), cache_params=cache[0])

    read, _ = recorded(model, tmp_path / "d", run)
    assert [told["position"] for told in read.manifest["passes"]] == [0, 7]
    with pytest.raises(DumpError, match="was filled before the hook"):
        recorded(model, tmp_path / "e", lambda model: model(torch.tensor([[4]]), cache_params=cache[0]))


@pytest.mark.parametrize("compiled", [lambda model: model, torch.compile, "in place"])
def test_a_compiled_model_shows_the_same_modules(tmp_path, compiled):
    torch._dynamo.reset()
    model = decoder("lfm2")
    plain, _ = recorded(model, tmp_path / "plain", lambda model: model(PROMPT))
    other = model
    if compiled == "in place":
        model.compile(backend="eager")
    else:
        other = compiled(model, backend="eager") if compiled is torch.compile else compiled(model)
    with torch.no_grad(), xcheck.hook(other, tmp_path / "compiled"):
        other(PROMPT)
    read = Reader(tmp_path / "compiled")
    assert set(read.outputs()) == set(plain.outputs())
    assert read.manifest["model"] == plain.manifest["model"]
    for key, row in read.outputs().items():
        np.testing.assert_allclose(read.value(row), plain.value(plain.outputs()[key]), rtol=1e-4, atol=1e-5)


def test_left_padding_is_told_with_the_inputs(tmp_path):
    ids, mask = torch.tensor([[0, 0, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1]])

    def run(model):
        model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False)

    read, seen = recorded(decoder("deepseek_v3"), tmp_path / "d", run)
    same_values(read, seen)
    assert read.manifest["passes"][0]["sequence"] == [None, None, 0, 0, 0]
    first = read.inputs(0)
    np.testing.assert_array_equal(first["input_ids"], ids)
    np.testing.assert_array_equal(first["attention_mask"], mask)


# ---------------------------------------------------------------------------------------------------
# The choice of modules.


@pytest.mark.parametrize("options", [{"modules": ("*.self_attn", "lm_head")}, {"only": ["*.self_attn", "lm_head"]}])
def test_patterns_select_modules(tmp_path, options):
    read, seen = recorded(decoder("gpt_oss"), tmp_path / "d", generate, **options)
    paths = {"model.layers.0.self_attn", "model.layers.1.self_attn", "lm_head"}
    assert {row["module"] for row in read.rows} == paths
    seen.values = {key: value for key, value in seen.values.items() if key[0] in paths}
    same_values(read, seen)
    assert len(read.manifest["generated"]) == 3


def test_a_pattern_may_be_one_string(tmp_path):
    read, _ = recorded(decoder("gpt_oss"), tmp_path / "d", generate, modules="logits")
    assert {row["module"] for row in read.rows} == {"logits"}


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def test_known_families_have_taps_unless_modules_are_asked_for(tmp_path):
    usual, _ = recorded(llama(), tmp_path / "usual", generate)
    assert all("tap" in row for row in usual.rows)
    read, seen = recorded(llama(), tmp_path / "modules", generate, modules=True)
    same_values(read, seen)
    assert read.manifest["model"]["architecture"] == "llama"
    rows = read.outputs()
    for tap, path in [("attn_norm", "input_layernorm"), ("ffn_out", "mlp.down_proj")]:
        ours = read.value(rows[f"model.layers.1.{path}", 1, 0])[0]
        np.testing.assert_array_equal(ours, usual.value(usual.find(tap, 1, 1)))
    assert read.manifest["generated"] == usual.manifest["generated"]


def test_a_model_of_ones_own_needs_no_map(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.out = torch.nn.Embedding(16, 4), torch.nn.Linear(4, 16)
            self.choose, self.noise = Choose(), Mask()

        def forward(self, tokens):
            x = self.tok(tokens)
            self.noise(x), self.choose(x)
            return self.out(x) * 2

    class Choose(torch.nn.Module):
        def forward(self, x):
            return x.topk(2).indices - 1

    class Mask(torch.nn.Module):
        def forward(self, x):
            return x > 0

    model = Own()
    read, _ = recorded(model, tmp_path / "d", lambda model: model(PROMPT))
    rows = read.outputs()
    assert {key[0] for key in rows} == {"tok", "out", "choose", "output"}
    assert read.manifest["model"]["architecture"] == "unknown"
    chosen = model.tok(PROMPT).topk(2).indices - 1
    np.testing.assert_array_equal(read.value(rows["choose", 0, 0]), chosen.numpy())
    assert rows["choose", 0, 0]["dtype"] == "i32"
    np.testing.assert_array_equal(read.value(rows["output", 0, 0]), 2 * read.value(rows["out", 0, 0]))


# ---------------------------------------------------------------------------------------------------
# Models without tokens, and those that read in both directions.

IMAGE = {"pixel_values": torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1))}
SOUND = {"input_features": torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(1))}
SOUND["attention_mask"] = torch.ones(1, 20, dtype=torch.long)
OTHERS = {
    "bert": (bert, WORDS),
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


@pytest.mark.parametrize("known", [False, True])
def test_checked_judges_modules_by_the_evaluator_that_runs_torch(tmp_path, monkeypatch, known):
    program = tmp_path / "program"
    lines = [f"#!{sys.executable}", "import json, sys", "print(json.dumps({'verdict': 'pass', 'given': sys.argv[1:]}))"]
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setenv("XCHECK", str(program))
    model, options = (llama(), {"modules": True}) if known else (decoder("lfm2"), {})
    with xcheck.checked(model, "files", report=tmp_path / "report", **options) as checked:
        generate(model)
    given = checked.report.data["given"]
    assert checked.report.passed and given[0] == "check"
    assert given[given.index("--evaluator") + 1] == "torch"
    dump = given[given.index("--candidate") + 1]
    assert all("module" in row for row in Reader(dump).rows)
    taps = llama()
    with xcheck.checked(taps, "files", report=tmp_path / "taps") as checked:
        generate(taps)
    assert "--evaluator" not in checked.report.data["given"]
