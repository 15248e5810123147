"""Dumps with taps of models that only torch knows: taps are placed on modules and judged there."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator_worker import served  # noqa: E402

import tiny  # noqa: E402
import xcheck  # noqa: E402
from xcheck.evaluator.attention import watched_attention  # noqa: E402
from xcheck.evaluator.bounds import violations  # noqa: E402
from xcheck.evaluator.evaluation import Session  # noqa: E402
from xcheck.follow import CACHES  # noqa: E402
from xcheck.guess import guess_norms  # noqa: E402

torch.set_num_threads(1)
PASSES = [tiny.TOKENS[:7], [51], [4]]
SIDES = {"output": lambda args, output: output, "input": lambda args, output: args[0]}
PLACES = {  # of the tests' models: module in the layer, side, tap
    "input_layernorm": ("output", "attn_norm"),
    "self_attn.q_b_proj": ("output", "q"),
    "self_attn.q_proj": ("output", "q"),
    "self_attn.k_proj": ("output", "k"),
    "self_attn.v_proj": ("output", "v"),
    "self_attn.o_proj": ("output", "attn_out"),
    "mlp": ("output", "ffn_out"),
}


def record(model, out, passes=PASSES, change=None, extra=None, only=None, **options):
    """Runs a model, and writes the taps that an engine of its own would write.

    change: changes a tap's value before it is written. extra: called in each pass with the dump.
    """
    heads = {"n_heads": 4, "n_kv_heads": model.config.num_key_value_heads}
    width = getattr(model.config, "qk_head_dim", None) or 8
    told = {"producer": "engine", "settings": {"dtype": "f32"}, "tokens": passes[0], "head_dim": width, **heads}
    cache = None
    with xcheck.Dump(out, architecture=model.config.model_type, **{**told, **options}) as dump:
        dump.forced()

        def see(tap, layer, value):
            if only is None or tap in only:
                value = value.detach().float()
                dump.tap(tap, value if change is None else change(tap, layer, value), layer=layer)

        handles = list(hooks(model, see))
        for tokens in passes:
            with dump.forward(tokens), torch.no_grad():
                output = model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
                see("logits", None, output.logits)
                if extra is not None:
                    extra(dump)
            cache = output[next(name for name in CACHES if name in output)]
        for handle in handles:
            handle.remove()
    return out


def hooks(model, see):
    """Registers hooks that call `see` with the taps of all layers."""

    def hook(tap, layer, side="output"):
        def keep(module, args, output):
            value = SIDES[side](args, output[0] if isinstance(output, tuple) else output)
            see(tap, layer, value)

        return keep

    yield model.model.embed_tokens.register_forward_hook(hook("embed", None))
    yield model.model.norm.register_forward_hook(hook("final_norm", None))
    for number, layer in enumerate(model.model.layers):
        for name, (side, tap) in PLACES.items():
            if name in dict(layer.named_modules()):
                yield layer.get_submodule(name).register_forward_hook(hook(tap, number, side))
        yield layer.self_attn.o_proj.register_forward_hook(hook("attn_context", number, "input"))
        yield layer.register_forward_hook(hook("block_out", number))


class Judged:
    """Judges a dump: the taps that fail, in the order of execution."""

    def __init__(self, path, dump):
        self.session = Session(str(path), str(dump), 4)
        self.session.load()
        self.sites, self.missing, self.wrong = [], [], []
        self.session.run(self.take)

    def take(self, message, tensors):
        if message["message"] not in ("site", "missing"):
            return
        site = (message["tap"], message.get("layer"), message["pass"])
        if message["message"] == "missing":
            self.missing.append((site, message["why"]))
            return
        row = self.session.dump.taps[site]
        stored = row.value(self.session.dump.read_file)
        assert tuple(tensors["exact"].shape) == row.shape == tuple(tensors["sigma"].shape)
        self.sites.append(site)
        if not message.get("tie") and violations(stored, tensors["exact"], tensors["sigma"]):
            self.wrong.append(site)


ARCHITECTURES = Path(__file__).parents[2] / "tests/data/architectures"
# Taps that no module returns, of any model.
NOT_PLACED = {
    *("attn_gate", "layer_input"),
    *("k_expanded", "v_expanded"),
    *("expert_scores", "expert_in", "expert_gate", "expert_up", "expert_act", "expert_out", "shared_weight"),
    *("conv_in", "conv_out", "conv_act", "step_size", "recurrent_state"),
    *("altup_projected", "altup_predicted", "altup_corrected", "altup_unembedded"),
    *("mixer_gate", "beta_logit", "decay_logit", "beta", "decay", "q_unit", "k_unit"),
}
LATENT = {"q_rope", "k_rope", "k_cache", "v_cache"}
INLINE = LATENT | {"attn_scores", "attn_weights"}  # attention that is no function of transformers' interface
LLAMA4 = {"q_rope", "k_rope", "experts", "expert_weights", "routed_out"}  # norms after RoPE, weights of all experts
DELTA_RULE = {"q", "attn_context", "recurrent_out"}
INSIDE = {"attn_residual", "ffn_residual"}  # sums inside the layer
VALUES = {"v"}  # projected like keys
# More taps that are not judged in some or all layers of a model. Any other tap that has no place fails the test.
ALSO_NOT_PLACED = {
    **dict.fromkeys(("deepseekv2", "deepseekv3", "glm47flash"), LATENT),
    **dict.fromkeys(("bloom", "bloom-6", "falcon-sequential", "gptj"), INLINE),
    **dict.fromkeys(("falcon", "falcon-new"), INLINE | {"q", "k", "v"}),  # of groups of heads
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), DELTA_RULE),
    "falconh1": {"recurrent_out"},  # only inside the module, without a norm after it
    **dict.fromkeys(("gemma3n", "gemma3n-shared"), INSIDE),
    **dict.fromkeys(("gemma4", "gemma4moe"), VALUES),
    "granitehybridmoe": {"ffn_out", "shared_gate", "shared_up"},
    "hunyuan": {"q_rope", "k_rope"},  # attention reads their norms
    **dict.fromkeys(("llama4", "llama4-chunks"), LLAMA4),
    "ministral3": {"q_rope"},  # attention reads queries times their temperature
    "opt": {"q_rope"},  # attention reads scaled queries
}
# Layers in which a tap of ALSO_NOT_PLACED has no place, if it has one in others.
ONLY_IN_LAYERS = {
    ("gemma4", "v"): {1},
    ("gemma4moe", "v"): {1},
    ("llama4", "k_rope"): {0, 1, 2},
    ("llama4-chunks", "k_rope"): {0},
}
WINDOW = {"attn_scores", "attn_weights", "k_cache", "v_cache"}
# Layers whose cache keeps fewer positions than the dump: WINDOW has no place there after the first pass.
SLIDING = {
    "cohere2": {0, 1, 2},
    "gemma3-bias": {0, 1},
    "mistral": {0, 1},
    "gemma3n-shared": {0, 2},
    "gemma4": {0, 2},
    **{name: {0} for name in ("exaone4-window", "gemma2", "gemma3n", "gemma4moe", "gptoss")},
    **{name: {0} for name in ("llama4-chunks", "ministral", "olmo3")},
}


def has_no_place(name, tap, layer, number):
    if tap in WINDOW and name in SLIDING:
        return layer in SLIDING[name] and number > 0
    if tap in ALSO_NOT_PLACED.get(name, ()):
        return layer in ONLY_IN_LAYERS.get((name, tap), {layer})
    return tap in NOT_PLACED


@pytest.mark.parametrize("name", sorted(path.name for path in ARCHITECTURES.glob("*")))
def test_taps_of_each_architecture_are_judged(name):
    result = Judged(ARCHITECTURES / name / "hf", ARCHITECTURES / name / "dumps/transformers-f32.safetensors")
    name, recorded = name.removeprefix("tiny-"), set(result.session.dump.taps)
    missing = {site for site, _ in result.missing}
    assert result.sites and not result.wrong
    assert missing == {site for site in recorded if has_no_place(name, *site)}
    assert set(result.sites) == recorded - missing
    assert ALSO_NOT_PLACED.get(name, set()) <= {tap for tap, _, _ in missing}


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe", "gpt_oss"])
def test_a_correct_engine_passes(models, tmp_path, kind):
    result = Judged(models(kind), record(tiny.load(models(kind)), tmp_path / "dump.safetensors"))
    assert not result.wrong and not result.missing
    assert len(result.sites) == len(result.session.dump.taps) > 30
    assert {site[2] for site in result.sites} == {0, 1, 2}


def scale_attention(model):
    for layer in model.model.layers[1:]:
        layer.self_attn.scaling *= 0.9


def exchange_experts(model):
    weight = model.model.layers[1].mlp.experts.down_proj
    weight[:2] = weight[:2].flip(0)


def other_eps(model):
    model.model.norm.variance_epsilon = 1e-3


FAULTS = {
    "attention scale": (scale_attention, ("attn_context", 1, 0)),
    "experts exchanged": (exchange_experts, ("ffn_out", 1, 0)),
    "eps of the last norm": (other_eps, ("final_norm", None, 0)),
}


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_at_the_right_tap(models, tmp_path, kind, name):
    change, site = FAULTS[name]
    model = tiny.load(models(kind))
    with torch.no_grad():
        change(model)
    result = Judged(models(kind), record(model, tmp_path / "dump.safetensors"))
    assert result.wrong[0] == site
    assert {wrong[:2] for wrong in result.wrong} == {site[:2]} and not result.missing


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_scores_of_attention_are_judged(models, tmp_path, factor):
    model, seen = tiny.load(models("glm4_moe")), {}

    def keep(call):
        if call.is_first:
            groups = call.query.unflatten(1, (call.key.shape[1], -1))
            found = torch.einsum("bkgtd,bksd->bkgts", groups, call.key).flatten(1, 2)
            seen[call.module.layer_idx] = found[0] * call.scaling

    def extra(dump):
        for layer, scores in seen.items():
            dump.tap("attn_scores", scores * factor, layer=layer)

    with watched_attention(keep):
        dump = record(model, tmp_path / "dump.safetensors", extra=extra)
    result = Judged(models("glm4_moe"), dump)
    scores = {site for site in result.sites if site[0] == "attn_scores"}
    assert len(scores) == 3 * len(model.model.layers) and not result.missing
    assert set(result.wrong) == (set() if factor == 1.0 else scores)


def test_a_wrong_value_is_the_input_of_the_next_tap(models, tmp_path):
    def change(tap, layer, value):
        return value + 1e-3 if (tap, layer) == ("k", 1) else value

    dump = record(tiny.load(models("glm4_moe")), tmp_path / "dump.safetensors", change=change, only={"k", "block_out"})
    wrong = Judged(models("glm4_moe"), dump).wrong
    # The engine did not compute with the wrong keys that it wrote.
    assert wrong[:2] == [("k", 1, 0), ("block_out", 1, 0)]


def test_a_tap_without_a_place_is_missing_with_the_modules_that_exist(models, tmp_path):
    def extra(dump):
        dump.tap("k", torch.ones(len(dump._open.rows.tokens), 4, 16), layer=0)

    dump = record(tiny.load(models("deepseek_v3")), tmp_path / "dump.safetensors", extra=extra, only={"block_out"})
    result = Judged(models("deepseek_v3"), dump)
    assert [site for site, _ in result.missing] == [("k", 0, 0), ("k", 0, 1), ("k", 0, 2)] and not result.wrong
    assert all("k: no module has this value" in why and "self_attn.kv_b_proj" in why for _, why in result.missing)


def test_another_shape_is_missing(models, tmp_path):
    dump = tmp_path / "dump.safetensors"
    with xcheck.Dump(
        dump, producer="engine", architecture="glm4_moe", tokens=[3, 4], settings={"dtype": "f32"}
    ) as file:
        file.forced()
        with file.forward([3, 4]):
            file.tap("block_out", torch.ones(2, 31), layer=1)
            file.tap("block_out", torch.ones(2, 32), layer=2)
    missing = dict(Judged(models("glm4_moe"), dump).missing)
    assert "shape [2, 31]" in missing["block_out", 1, 0] and "has 2 layers" in missing["block_out", 2, 0]


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "glm4_moe", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_taps_of_the_hook_pass(models, tmp_path, kind, dtype):
    model, dump = tiny.load(models(kind), dtype), tmp_path / "dump.safetensors"
    also = ("k_cache", "v_cache", "attn_weights")
    with torch.no_grad(), xcheck.hook(model, dump, map=xcheck.guess_map(model), also=also):
        model.generate(torch.tensor([PASSES[0]]), max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0)
    result = Judged(models(kind), dump)
    assert not result.wrong and not result.missing
    assert {"k_rope", "k_cache", "v_cache", "argmax"} <= {site[0] for site in result.sites}


def test_pairs_of_rope_may_be_neighbours(models, tmp_path):
    def turned(tap, layer, value):
        count = {"q": 4, "k": 2}.get(tap)
        if count is None:
            return value
        return value.unflatten(-1, (count, 2, 4)).transpose(-1, -2).flatten(-3)

    model = tiny.load(models("llama"))
    dump = record(model, tmp_path / "dump.safetensors", change=turned, rope_pairing="interleaved")
    result = Judged(models("llama"), dump)
    assert not result.wrong and not result.missing and ("q", 0, 0) in result.sites
    other = record(model, tmp_path / "other.safetensors", rope_pairing="interleaved")  # the values are not
    assert ("q", 0, 0) in Judged(models("llama"), other).wrong


def test_a_cause_is_found_for_a_tap_that_a_module_returns(models, tmp_path):
    model = tiny.load(models("glm4_moe"))
    other_eps(model)
    dump = record(model, tmp_path / "dump.safetensors")
    evaluate = {"protocol": 1, "request": "evaluate", "model": str(models("glm4_moe")), "dump": str(dump), "runs": 4}
    causes = {"protocol": 1, "request": "causes", "pass": 0, "seconds": 60}
    named, unplaced = {"tap": "final_norm"}, {"tap": "attn_context", "layer": 1}
    first, second, third = served(evaluate, {**causes, **named}, {**causes, **unplaced})
    assert [(message["expected"], message["found"]) for message, _ in second] == [("1e-05", "0.001")]
    assert "variance_epsilon" in second[0][0]["what"] and third == []
    assert first[0][0]["message"] == "hello"


def test_rows_and_parts_of_an_array_are_judged(models, tmp_path):
    path = models("glm4_moe")
    model, values = tiny.load(path), {}
    layer = model.model.layers[0].mlp
    for name in ("gate_proj", "up_proj"):
        layer.get_submodule(name).register_forward_hook(lambda _, __, output, name=name: values.update({name: output}))

    def extra(dump, wrong=0.0):
        dump.tap("gate_up", torch.cat([values["gate_proj"], values["up_proj"] + wrong], -1), layer=0)

    def some(dump):
        extra(dump)
        if dump._open.index == 0:
            dump.tap("logits", model.lm_head(values["norm"])[:, [2, 5]], rows=[2, 5])

    model.model.norm.register_forward_hook(lambda _, __, output: values.update(norm=output))
    for wrong in (0.0, 1e-3):
        result = Judged(path, record(model, tmp_path / f"{wrong}.safetensors", only={"block_out"},
                                     extra=some if not wrong else lambda dump: extra(dump, 1e-3)))  # fmt: skip
        assert not result.missing and {("ffn_gate", 0, 0), ("ffn_up", 0, 2)} <= set(result.sites)
        assert (("ffn_up", 0, 0) in result.wrong) == bool(wrong) and ("ffn_gate", 0, 0) not in result.wrong
        assert wrong or (("logits", None, 0) in result.sites and not result.wrong)


def test_an_attention_function_that_a_layer_calls_twice_has_no_taps(models, tmp_path):
    model, dump = tiny.load(models("diffllama")), tmp_path / "dump.safetensors"
    with torch.no_grad(), xcheck.hook(model, dump, map=xcheck.guess_map(model), also=("v_cache",)):
        model(input_ids=torch.tensor([PASSES[0]]))
    result = Judged(models("diffllama"), dump)
    assert not result.wrong and {site[0] for site, _ in result.missing} == {"k_rope", "v_cache"}


def test_norms_are_told_apart_by_names_if_a_layer_has_unusual_ones():
    norm = torch.nn.LayerNorm
    first = torch.nn.ModuleDict({"attn_norm": torch.nn.Identity(), "mlp_norm": norm(4)})
    names = ("q_input_layernorm", "k_input_layernorm", "v_input_layernorm", "post_attention_layernorm")
    assert guess_norms(first)["ffn_norm"] == "output of mlp_norm" and "attn_norm" not in guess_norms(first)
    found = guess_norms(torch.nn.ModuleDict({name: norm(4) for name in names}))
    assert found["ffn_norm"] == "output of post_attention_layernorm" and "attn_norm" not in found
    assert guess_norms(torch.nn.ModuleDict({"input_layernorm": norm(4)})) == {"attn_norm": "output of input_layernorm"}


def test_norms_are_told_apart_if_a_layer_lists_them_in_another_order_or_has_norms_of_more():
    def found(*names):
        return guess_norms(torch.nn.ModuleDict({name: torch.nn.LayerNorm(4) for name in names}))

    falcon = found("post_attention_layernorm", "input_layernorm")
    assert falcon["attn_norm"] == "output of input_layernorm"
    assert falcon["attn_residual"] == "input of post_attention_layernorm"
    own = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    assert found(*own, "post_per_layer_input_norm") == found(*own)  # Gemma 4
    assert found(*own)["ffn_post_norm"] == "output of post_feedforward_layernorm"
