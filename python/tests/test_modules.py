"""Outputs of modules: language models of any architecture, without a map."""

from __future__ import annotations

import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import xcheck  # noqa: E402
from make_v2_dumps import cache_of  # noqa: E402
from reader import Reader  # noqa: E402
from tiny_models import (  # noqa: E402
    DECODERS,
    DTYPES,
    PROMPT,
    decoder,
    generate,
    llama,
    recorded,
    same_values,
)
from xcheck import DumpError  # noqa: E402

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


def test_calls_without_a_value_are_counted(tmp_path):
    class Rows(torch.nn.Module):
        def forward(self, x, count):
            return x[:, :count]

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tok, self.rows = torch.nn.Embedding(16, 4), Rows()

        def forward(self, tokens):
            x = self.tok(tokens)
            return sum(self.rows(x, count).sum() for count in (2, 0, 3))

    read, _ = recorded(Own(), tmp_path / "d", lambda model: model(PROMPT))
    calls = {call: row["shape"] for (path, _, call), row in read.outputs().items() if path == "rows"}
    assert calls == {0: [1, 2, 4], 2: [1, 3, 4]}


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
        cache = cache_of(model(PROMPT))
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


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def compiled_forward(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def compiled_part(model):
    compiled_forward(model.model.layers[1].feed_forward)
    return model


def not_compiled(model):
    model.forward = torch.compiler.disable(model.forward)  # a wrapper as torch.compile makes it
    return model


COMPILED = {
    "a model": (lambda model: model, None),
    "a model that must not be compiled": (not_compiled, None),
    "torch.compile(model)": (lambda model: torch.compile(model, backend="eager"), "on"),
    "model.compile()": (compiled_in_place, "on"),
    "torch.compile(model.forward)": (compiled_forward, "on"),
    "torch.compile(part.forward)": (compiled_part, "on"),
}


@pytest.mark.parametrize("case", COMPILED)
def test_a_compiled_model_shows_the_same_modules_and_its_dump_says_so(tmp_path, case):
    torch._dynamo.reset()
    change, setting = COMPILED[case]
    model = decoder("lfm2")
    plain, _ = recorded(model, tmp_path / "plain", lambda model: model(PROMPT))
    other = change(model)
    with torch.no_grad(), xcheck.hook(other, tmp_path / "compiled"):
        other(PROMPT)
    read = Reader(tmp_path / "compiled")
    assert set(read.outputs()) == set(plain.outputs())
    assert read.manifest["model"] == plain.manifest["model"]
    assert read.manifest["producer"]["settings"].get("torch_compile") == setting
    assert "torch_compile" not in plain.manifest["producer"]["settings"]
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
    assert given[given.index("--python") + 1] == sys.executable
    dump = given[given.index("--candidate") + 1]
    assert all("module" in row for row in Reader(dump).rows)
    taps = llama()
    with xcheck.checked(taps, "files", report=tmp_path / "taps") as checked:
        generate(taps)
    assert "--evaluator" not in checked.report.data["given"]


def test_a_layer_with_an_adapter_is_one_module(tmp_path):
    peft = pytest.importorskip("peft")
    plain, _ = recorded(llama(), tmp_path / "plain", lambda model: model(PROMPT), modules=True)
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    adapted = peft.get_peft_model(llama(), config).eval()
    with torch.no_grad(), xcheck.hook(adapted, tmp_path / "adapted", modules=True):
        adapted(PROMPT)
    with torch.no_grad(), xcheck.hook(adapted.merge_and_unload(), tmp_path / "merged", modules=True) as dump:
        adapted.get_base_model()(PROMPT)
    assert dump.has_modules
    read, merged = Reader(tmp_path / "adapted"), Reader(tmp_path / "merged")
    assert list(read.outputs()) == list(plain.outputs()) == list(merged.outputs())
    key = ("model.layers.0.self_attn.q_proj", 0, 0)
    found = read.value(read.outputs()[key])
    np.testing.assert_allclose(found, merged.value(merged.outputs()[key]), rtol=1e-4, atol=1e-5)
    assert not np.allclose(found, plain.value(plain.outputs()[key]), rtol=1e-2, atol=1e-3)


def test_autocast_that_begins_after_the_hook_is_recorded(tmp_path):
    model = decoder("lfm2")
    settings = {}
    for name, is_on in (("with", True), ("without", False)):
        with torch.no_grad(), xcheck.hook(model, tmp_path / name, modules=True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
                model(PROMPT)
        settings[name] = Reader(tmp_path / name).manifest["producer"]["settings"]
    assert settings["with"]["autocast"] == "bf16" and settings["with"]["device"] == "cpu"
    assert "autocast" not in settings["without"] and "device" not in settings["without"]
