"""Dumps have the values that were tapped, and refusals say what to write instead."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import xcheck
from conftest import numbers
from reader import Reader
from xcheck import DumpError, DumpWarning


@pytest.mark.parametrize("name", ["dump.safetensors", "dump"])
def test_one_sequence_is_version_1(small, tmp_path, name):
    with small(name, tokens=[1, 2, 3], prompt="Hello", settings={"dtype": "f32"}, rope_pairing="half") as dump:
        with dump.forward([1, 2, 3]):
            dump.tap("embed", numbers(3, 32))
            dump.tap("q", numbers(3, 4, 8).astype(np.float16), layer=1)
            dump.tap("argmax", 7)
        with dump.forward([7], position=3, temperature=0.5):
            dump.tap("probs", numbers(10))
        dump.generated([7, 5])
    read = Reader(tmp_path / name)
    told = {key: value for key, value in read.manifest.items() if key != "tensors"}
    assert told == {
        "format": "xcheck-dump",
        "version": 1,
        "producer": {"name": "test", "settings": {"dtype": "f32"}},
        "model": {"architecture": "llama"},
        "layout": {"rope_pairing": "half"},
        "input": {"decode": "greedy", "prompt": "Hello", "tokens": [1, 2, 3]},
        "passes": [{"position": 0, "tokens": [1, 2, 3]}, {"position": 3, "tokens": [7], "temperature": 0.5}],
        "generated": [7, 5],
    }
    assert [row["file"] for row in read.rows] == ["p0/embed.npy", "p0/l01/q.npy", "p0/argmax.npy", "p1/probs.npy"]
    np.testing.assert_array_equal(read.value(read.find("q", 0, 1)), numbers(3, 4, 8))
    assert read.find("q", 0, 1)["dtype"] == "f16"
    assert os.listdir(tmp_path) == [name]


def test_tap_gives_the_value_back(small):
    with small() as dump, dump.forward([1]):
        value = numbers(1, 32)
        assert dump.tap("embed", value) is value


def test_values_are_written_at_once(small, tmp_path):
    value = numbers(1, 32)
    with small() as dump, dump.forward([1]):
        dump.tap("embed", value)
        value *= 0
    np.testing.assert_array_equal(Reader(tmp_path / "dump.safetensors").value({**dump._values.rows[0]}), numbers(1, 32))


def test_sha256_is_that_of_the_elements(small, tmp_path):
    import hashlib

    with small() as dump, dump.forward([1, 2]):
        dump.tap("embed", numbers(32, 2).T)
    row = Reader(tmp_path / "dump.safetensors").rows[0]
    assert row["sha256"] == hashlib.sha256(np.ascontiguousarray(numbers(32, 2).T).tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["dump.safetensors", "dump"])
@pytest.mark.parametrize("by_layer", [False, True])
def test_nothing_stays_of_a_run_that_fails(small, tmp_path, name, by_layer):
    if by_layer and name != "dump":
        return
    with pytest.raises(ZeroDivisionError), small(name, by_layer=by_layer) as dump, dump.forward([1]):
        dump.tap("embed", numbers(1, 32))
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_pass_that_was_left_by_an_error_is_not_passed_over(small, tmp_path):
    with pytest.raises(DumpError, match="pass 0 was left by ZeroDivisionError: nothing was written"), small() as dump:
        with pytest.raises(ZeroDivisionError), dump.forward([1]):
            dump.tap("embed", numbers(1, 32))
            raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_dump_that_is_forgotten_leaves_nothing(small, tmp_path):
    dump = small()
    del dump
    assert os.listdir(tmp_path) == []


def test_a_file_is_replaced_when_the_dump_is_whole_and_a_directory_never(small, tmp_path):
    for token in (1, 2):
        with small() as dump, dump.forward([token]):
            dump.tap("embed", numbers(1, 32))
            if token == 2:
                assert Reader(tmp_path / "dump.safetensors").manifest["input"]["tokens"] == [1]
    assert Reader(tmp_path / "dump.safetensors").manifest["input"]["tokens"] == [2]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(DumpError, match="is not mixed with other files"):
        small("full")
    with pytest.raises(DumpError, match="name a .safetensors file or a directory"):
        small("dump.npz")


def test_the_safetensors_library_reads_the_file(small, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    with small() as dump, dump.forward([1]):
        dump.tap("embed", numbers(1, 32).astype(np.float16))
        dump.tap("attn_norm", numbers(1, 32), layer=0)
        dump.tap("final_norm", numbers(1, 32).astype(np.float64))
    arrays = safetensors.load_file(tmp_path / "dump.safetensors")
    np.testing.assert_array_equal(arrays["p0/l00/attn_norm"], numbers(1, 32))
    assert list(arrays["p0/final_norm"].shape) == [1, 32]


def test_files_by_layer_are_named_in_the_manifest(small, tmp_path):
    with small("dump", by_layer=True) as dump, dump.forward([1]):
        dump.tap("embed", numbers(1, 32))
        dump.tap("attn_norm", numbers(1, 32) + 1, layer=0)
        dump.tap("attn_norm", numbers(1, 32) + 2, layer=1)
    read = Reader(tmp_path / "dump")
    assert read.manifest["version"] == 2
    assert [row["file"] for row in read.rows] == [
        "rest.safetensors#p0/embed",
        "l000.safetensors#p0/l00/attn_norm",
        "l001.safetensors#p0/l01/attn_norm",
    ]
    np.testing.assert_array_equal(read.value(read.find("attn_norm", 0, 1)), numbers(1, 32) + 2)
    assert sorted(os.listdir(tmp_path / "dump")) == [
        "l000.safetensors",
        "l001.safetensors",
        "manifest.json",
        "rest.safetensors",
    ]


@pytest.mark.parametrize(
    ("tap", "shape", "options", "message"),
    [
        ("attn_nrom", (2, 32), {"layer": 0}, "did you mean 'attn_norm'"),
        ("o_proj", (2, 32), {"layer": 0}, "did you mean 'attn_out'"),
        ("xyzzy", (2, 32), {}, "the taps are embed, altup_projected"),
        ("generated", (2,), {}, r"write dump.generated\(ids\)"),
        ("attn_norm", (2, 32), {}, r"of which layer\? Write tap\('attn_norm', value, layer=0\)"),
        ("qkv", (2, 64), {}, r"qkv: of which layer"),
        ("embed", (2, 32), {"layer": 0}, "leave layer= out"),
        ("attn_norm", (2, 32), {"layer": 2}, "there is no layer 2; layers count from 0, and there are 2"),
        ("attn_norm", (2, 32), {"layer": -1}, "there is no layer -1"),
        ("attn_norm", (3, 32), {"layer": 0}, "axis 'token' is 3 long, expected 2: the tokens of this pass"),
        ("attn_norm", (32,), {"layer": 0}, r"expected \[token, hidden\] or \[batch, token, hidden\] with token = 2"),
        ("q", (2, 8, 4), {"layer": 0}, "axis 'head' is 8 long, expected 4"),
        ("k", (2, 4, 8), {"layer": 0}, "axis 'kv_head' is 4 long, expected 2"),
        ("q", (2, 33), {"layer": 0}, r"name other axes with axes=\(\.\.\.\)"),
        ("q", (4, 2, 8), {"layer": 0, "axes": ("head", "token", "dim")}, "there is no axis 'dim': the axes are batch"),
        ("q", (4, 2, 8), {"layer": 0, "axes": ("head", "token", "token")}, "name one twice"),
        ("q", (4, 2, 8), {"layer": 0, "axes": ("head", "token")}, "are 2, but the array's shape is"),
        ("q", (4, 2, 8), {"layer": 0, "axes": ("head", "token", "ffn")}, "has no axis|lacks an axis 'head_dim'"),
        ("embed", (2, 32), {"axes": ("token", "vocab")}, "lacks an axis 'hidden'"),
        ("qkv", (2, 63), {"layer": 0}, r"the last axis has to be 64 long, \(4 \+ 2 · 2\) heads of 8"),
        ("qkv", (2, 64), {"layer": 0, "layout": "interleaved"}, "the layouts are beside, by_head"),
        ("gate_up", (2, 63), {"layer": 0}, "no two halves"),
        ("gate_up", (3, 64), {"layer": 0}, r"expected \[2\] and one axis of all parts"),
        ("q", (2, 4, 8), {"layer": 0, "layout": "beside"}, "layout= is of qkv and gate_up"),
        ("embed", (1, 32), {"rows": [2]}, "have to be rows of the pass, 0 to 1, in ascending order"),
        ("embed", (1, 32), {"rows": [-1]}, "have to be rows of the pass"),
        ("embed", (1, 32), {"rows": []}, "have to be rows of the pass"),
        ("embed", (2, 32), {"rows": [1, 0]}, "have to be rows of the pass, 0 to 1, in ascending order"),
        ("embed", (2, 32), {"rows": [1, 1]}, "in ascending order"),
        ("k_cache", (1, 2, 8), {"layer": 0, "rows": [0]}, "has no axis 'token'"),
        ("embed", (2, 32), {"scale": 2.0}, "scale= is of f8 values"),
        ("embed", (2, 32), {"computed": "f32"}, "has to be one of f32, f16, bf16, and a type shorter than f32"),
        ("embed", (2, 32), {"computed": "f8_e4m3"}, "has to be one of f32, f16, bf16"),
        ("last_logits", (3, 9), {}, "axis 'batch' is 3 long, expected 1: the sequences of this pass"),
    ],
)
def test_nonsense_is_refused_with_what_to_write_instead(small, tap, shape, options, message):
    with pytest.raises(DumpError, match=message), small() as dump, dump.forward([1, 2]):
        dump.tap(tap, numbers(*shape), **options)


def test_a_layer_that_no_model_has_is_refused(small):
    with pytest.raises(DumpError, match="attn_norm: no model has a layer 65536"), small(n_layers=None) as dump:
        with dump.forward([1, 2]):
            dump.tap("attn_norm", numbers(2, 32), layer=65535)
            dump.tap("attn_norm", numbers(2, 32), layer=65536)


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf"), 1e-60, 1e60])
def test_temperatures_that_are_none_are_refused(small, temperature):
    with pytest.raises(DumpError, match="expected a positive number"), small() as dump:
        with dump.forward([1, 2], temperature=temperature):
            dump.tap("argmax", 1)


@pytest.mark.parametrize("token", [-1, 1 << 32])
def test_token_ids_that_are_none_are_refused(small, token):
    with pytest.raises(DumpError, match=f"token ids are not negative, and have at most 32 bits: {token}"):
        with small() as dump, dump.forward([1, 2]):
            dump.tap("argmax", token)


def test_whole_numbers_are_no_activations(small):
    with pytest.raises(DumpError, match=r"embed: whole numbers \(i32\) are no activations"), small() as dump:
        with dump.forward([1]):
            dump.tap("embed", np.ones((1, 32), np.int32))


def test_a_type_that_the_contract_does_not_know_is_refused(small):
    with pytest.raises(DumpError, match="embed: values of type int8 cannot be stored: convert them to one of f32"):
        with small() as dump, dump.forward([1]):
            dump.tap("embed", np.ones((1, 32), np.int8))


def test_the_same_tap_twice_is_refused(small):
    with pytest.raises(DumpError, match="q: layer 0 of pass 0 has one already"), small() as dump, dump.forward([1]):
        dump.tap("qkv", numbers(1, 64), layer=0)
        dump.tap("q", numbers(1, 32), layer=0)


def test_taps_lie_in_passes_and_passes_not_inside_each_other(small):
    with pytest.raises(DumpError, match=r"write `with dump.forward\(tokens\):`"), small() as dump:
        dump.tap("embed", numbers(1, 32))
    with pytest.raises(DumpError, match="passes do not lie inside each other"), small() as dump, dump.forward([1]):
        with dump.forward([2]):
            pass
    with pytest.raises(DumpError, match="nothing was tapped"), small() as dump, dump.forward([1]):
        pass
    with pytest.raises(DumpError, match="has been closed"):
        dump.tap("embed", numbers(1, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"architecture": None}, "architecture= has to name the family"),
        ({"producer": ""}, "producer= has to name the engine"),
        ({"rope_pairing": "neox"}, "it is 'half'"),
        ({"n_kv_heads": 3}, "n_heads=4 is no multiple of n_kv_heads=3"),
        ({"by_layer": True}, "files by layer lie in a directory"),
        ({"tokens": [[1], [2]], "prompt": ["a", "b", "c"]}, "3 prompts, but tokens of 2"),
        ({"tokens": [1 << 32]}, "at most 32 bits"),
        ({"tokens": [-1]}, "token ids are not negative"),
        ({"tokens": [0.5]}, "expected whole numbers"),
    ],
)
def test_what_a_dump_has_to_be_told_is_checked_first(small, tmp_path, options, message):
    with pytest.raises(DumpError, match=message):
        small(**options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("value", "message"), [(np.nan, "nothing but NaN"), (0.0, "nothing but zeros")])
def test_values_that_cannot_be_meant_are_warned_of(small, value, message):
    with small() as dump, dump.forward([1]):
        with pytest.warns(DumpWarning, match=f"embed is {message}: was it tapped before") as seen:
            dump.tap("embed", np.full((1, 32), value, np.float32))
        assert seen[0].filename == __file__


def test_a_configuration_tells_heads_layers_and_architecture(tmp_path):
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 16}
    text = {"model_type": "gemma3_text", "num_hidden_layers": 3, **sizes}
    config = {"model_type": "gemma3", "text_config": text}
    with xcheck.Dump(tmp_path / "d", producer="test", config=config) as dump, dump.forward([1]):
        dump.tap("k", numbers(1, 32), layer=2)
    read = Reader(tmp_path / "d")
    assert read.manifest["model"] == {"architecture": "gemma3"}
    assert read.rows[0]["shape"] == [1, 2, 16]


def test_gpt2_configurations_are_read(tmp_path):
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2}
    with xcheck.Dump(tmp_path / "d", producer="test", config=config) as dump, dump.forward([1]):
        dump.tap("k", numbers(1, 64), layer=1)
    assert Reader(tmp_path / "d").rows[0]["shape"] == [1, 4, 16]


def test_the_manifest_is_json_that_anyone_reads(small, tmp_path):
    with small("d", prompt="Grüße, 世界", tokens=[1]) as dump, dump.forward(np.array([[1]])):
        dump.tap("embed", [[1.0] * 32], dtype="f32")
    assert (
        json.loads((tmp_path / "d" / "manifest.json").read_text(encoding="utf-8"))["input"]["prompt"] == "Grüße, 世界"
    )


@pytest.mark.parametrize(
    "told",
    [
        {"settings": {"scale": float("nan")}},
        {"settings": {"engine": object()}},
        {"model": "\ud800"},
        {"prompt": "\ud800"},
        {"rounding": {"q": {1, 2}}},
    ],
)
def test_what_cannot_stand_in_the_manifest_is_refused_before_the_run(tmp_path, told):
    with pytest.raises(DumpError, match="cannot stand in the manifest"):
        xcheck.Dump(tmp_path / "dump", producer="test", architecture="llama", **told)
    assert os.listdir(tmp_path) == []


def test_numbers_of_numpy_are_numbers(tmp_path):
    settings = {"threads": np.int64(4), "eps": np.float32(0.5)}
    with xcheck.Dump(tmp_path / "dump", producer="test", architecture="llama", settings=settings) as dump:
        with dump.forward([1]):
            dump.tap("embed", numbers(1, 8))
    told = json.loads((tmp_path / "dump" / "manifest.json").read_text())["producer"]["settings"]
    assert told == {"threads": 4, "eps": 0.5}


def test_a_sequence_that_no_pass_reads_is_refused(tmp_path):
    with pytest.raises(DumpError, match="sequence 1 is read by no pass"):
        with xcheck.Dump(tmp_path / "dump", producer="test", architecture="llama", tokens=[[1, 2], [3]]) as dump:
            with dump.forward([1, 2], sequence=0):
                dump.tap("embed", numbers(2, 8))
