"""Sequences, fusions, rows and short floats stand in the manifest as the contract says."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import numbers
from reader import Reader
from xcheck import DumpError


def test_the_contracts_own_example_of_a_batch(small, tmp_path):
    with small() as dump:
        with dump.forward([[9, 1, 15043], [1, 306, 626]], attention_mask=[[0, 1, 1], [1, 1, 1]]):
            dump.tap("attn_norm", numbers(2, 3, 32), layer=0)
            dump.tap("last_logits", numbers(2, 9))
        with dump.forward([[29892], [263]], attention_mask=[[0, 1, 1, 1], [1, 1, 1, 1]], position=[2, 3]):
            dump.tap("attn_norm", numbers(2, 1, 32), layer=0)
            dump.tap("argmax", [4, 5])
        dump.generated([29892, 4], sequence=0)
        dump.forced(sequence=1)
    manifest = Reader(tmp_path / "dump.safetensors").manifest
    assert manifest["version"] == 2
    assert "generated" not in manifest
    assert manifest["input"] == {"sequences": [
        {"tokens": [1, 15043], "generated": [29892, 4]},
        {"tokens": [1, 306, 626], "decode": "forced"},
    ]}  # fmt: skip
    assert manifest["passes"] == [
        {"tokens": [9, 1, 15043, 1, 306, 626], "sequence": [None, 0, 0, 1, 1, 1], "position": [0, 0, 1, 0, 1, 2]},
        {"tokens": [29892, 263], "sequence": [0, 1], "position": [2, 3]},
    ]
    assert [row["shape"] for row in manifest["tensors"]] == [[2, 3, 32], [2, 9], [2, 1, 32], [2]]


def test_packed_and_continuous_batches(small, tmp_path):
    with small(tokens=[[1, 2, 3], [4, 5]], prompt=["a", "b"]) as dump:
        with dump.forward([1, 2, 4, 5], sequence=[0, 0, 1, 1], position=[0, 1, 0, 1]):
            dump.tap("embed", numbers(4, 32))
        with dump.forward([6, 3, 7], sequence=[1, 0, 2]):
            dump.tap("embed", numbers(3, 32) + 1000)
            dump.tap("last_logits", numbers(3, 9))
    read = Reader(tmp_path / "dump.safetensors")
    assert read.manifest["input"]["sequences"] == [
        {"prompt": "a", "tokens": [1, 2, 3]},
        {"prompt": "b", "tokens": [4, 5]},
        {"tokens": [7]},
    ]
    assert read.manifest["passes"][1] == {"tokens": [6, 3, 7], "sequence": [1, 0, 2], "position": [2, 2, 0]}
    expected = np.stack([numbers(4, 32)[2], numbers(4, 32)[3], numbers(3, 32)[0] + 1000])
    np.testing.assert_array_equal(read.of_sequence(1, "embed"), expected)


def test_a_batch_may_be_given_as_rows_and_its_heads_first(small, tmp_path):
    q = numbers(2, 3, 4, 8)
    with small("dump") as dump, dump.forward([[1, 2, 3], [4, 5, 6]]):
        dump.tap("q", q.transpose(0, 2, 1, 3), layer=0, axes=("batch", "head", "token", "head_dim"))
        dump.tap("k", numbers(6, 16), layer=0)
        dump.tap("v", numbers(2, 3, 16), layer=0)
        dump.tap("attn_scores", numbers(2, 4, 3, 3), layer=0)
        dump.tap("k_cache", numbers(2, 2, 3, 8), layer=0, axes=("batch", "kv_head", "key", "head_dim"))
    read = Reader(tmp_path / "dump")
    np.testing.assert_array_equal(read.value(read.find("q", 0, 0)), q)
    assert [(row["shape"], row.get("axes")) for row in read.rows] == [
        ([2, 3, 4, 8], None),
        ([6, 2, 8], None),
        ([2, 3, 2, 8], None),
        ([2, 4, 3, 3], ["batch", "head", "token", "key"]),
        ([2, 3, 2, 8], ["batch", "key", "kv_head", "head_dim"]),
    ]


def test_entries_of_a_batch_that_have_ended_are_padding(small, tmp_path):
    with small() as dump:
        with dump.forward([[1], [2], [3]]):
            dump.tap("embed", numbers(3, 1, 32))
        with dump.forward([[4], [0], [5]], sequence=[0, None, 2]):
            dump.tap("embed", numbers(3, 1, 32))
            dump.tap("last_logits", numbers(3, 9))
            dump.tap("argmax", [7, 8, 9])
    read = Reader(tmp_path / "dump.safetensors")
    assert read.manifest["passes"][1]["sequence"] == [0, None, 2]
    np.testing.assert_array_equal(read.value(read.find("last_logits", 1)), numbers(3, 9)[[0, 2]])
    np.testing.assert_array_equal(read.value(read.find("argmax", 1)), [7, 9])


def test_keys_are_said_as_the_contract_says(small, tmp_path):
    keys = {"sequence": [0, 0, None, 1], "position": [0, 1, 0, 0]}
    with small() as dump:
        with dump.forward([1, 2, 3], sequence=[0, 0, 1], keys=keys):
            dump.tap("attn_weights", numbers(4, 3, 4), layer=0)
        with dump.forward([[1], [2]], keys=[keys, keys]):
            dump.tap("attn_weights", numbers(2, 4, 1, 4), layer=0)
    passes = Reader(tmp_path / "dump.safetensors").manifest["passes"]
    assert passes[0]["keys"] == keys
    assert passes[1]["keys"] == [keys, keys]


def test_more_keys_than_were_named_are_refused(small):
    keys = {"sequence": [0, 0], "position": [0, 1]}
    with pytest.raises(DumpError, match="axis 'key' is 5 long, but keys= of this pass names 2"), small() as dump:
        with dump.forward([1], keys=keys):
            dump.tap("attn_weights", numbers(4, 1, 5), layer=0)


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([{"tokens": [1, 2], "position": 1}], "a row of sequence 0 is at position 1, expected 0"),
        (
            [{"tokens": [1, 2]}, {"tokens": [3], "position": 1}],
            "at position 1, expected 2.*another prompt is another sequence",
        ),
        ([{"tokens": [1, 2], "position": [0, 2]}], "at position 2, expected 1"),
        ([{"tokens": [1, 2], "position": [0, 1, 2]}], r"position of shape \[3\] for rows of shape \[2\]"),
        ([{"tokens": [[1, 2]], "attention_mask": [[0, 1]], "position": [[0, 1]]}], "Padding does not count"),
        ([{"tokens": [1], "sequence": 1}], "sequences count from 0: there is no row of sequence 0"),
        ([{"tokens": [1], "sequence": [-2]}], "sequences count from 0: -2"),
        (
            [{"tokens": [1, 2], "sequence": [0]}, {"tokens": [1, 2], "sequence": [0, 0, 0]}],
            "one number, one for each row",
        ),
        ([{"tokens": [1], "sequence": [None]}], "nothing but padding"),
        ([{"tokens": [1, -100]}], "mark padding with attention_mask="),
        ([{"tokens": [1, 1 << 32]}], "token ids are not negative, and have at most 32 bits: 4294967296"),
        ([{"tokens": []}], "tokens of a pass"),
        ([{"tokens": [0.5]}], "expected whole numbers"),
        (
            [{"tokens": [[1, 2]], "attention_mask": [[1]]}],
            r"attention_mask of shape \[1, 1\] for tokens of shape \[1, 2\]",
        ),
        ([{"tokens": [1], "keys": {"sequence": [0]}}], 'keys are {"sequence"'),
        ([{"tokens": [1], "keys": {"sequence": [0], "position": [0, 1]}}], "1 sequences, but 2 positions"),
        ([{"tokens": [[1], [2]], "keys": [{"sequence": [0], "position": [0]}]}], "1 lists for a batch of 2"),
    ],
)
def test_passes_that_contradict_each_other_are_refused(small, passes, message):
    with pytest.raises(DumpError, match=message), small() as dump:
        for number, options in enumerate(passes):
            with dump.forward(**options):
                if number < len(passes):
                    dump.tap("argmax", 1)


def test_a_pass_that_is_refused_leaves_no_trace(small, tmp_path):
    with small(tokens=[[1, 2], [3]]) as dump:
        for tokens, owners in (([1, 4], [0, 1]), ([1, 3, 5], [0, 1, 3])):
            with pytest.raises(DumpError), dump.forward(tokens, sequence=owners):
                pass
        with dump.forward([1, 3, 2], sequence=[0, 1, 0]):
            dump.tap("argmax", [3, 4])
    assert Reader(tmp_path / "dump.safetensors").manifest["passes"][0]["position"] == [0, 0, 1]


def test_prompts_given_as_text_are_read_in_any_pass(small, tmp_path):
    with small(prompt=["a", "b"]) as dump:
        with dump.forward([1], sequence=0):
            dump.tap("argmax", 3)
        with dump.forward([2], sequence=1):
            dump.tap("argmax", 3)
    sequences = Reader(tmp_path / "dump.safetensors").manifest["input"]["sequences"]
    assert sequences == [{"prompt": "a", "tokens": [1]}, {"prompt": "b", "tokens": [2]}]
    with pytest.raises(DumpError, match="sequence 1 is read by no pass"), small(prompt=["a", "b"]) as dump:
        with dump.forward([1], sequence=0):
            dump.tap("argmax", 3)


def test_prompts_are_taken_as_engines_have_them(small, tmp_path):
    for tokens in (np.array([[1, 2]]), [np.int64(1), np.int32(2)], (1, 2), [[1, 2]]):
        with small(tokens=tokens) as dump, dump.forward([1, 2]):
            dump.tap("argmax", 3)
        assert Reader(tmp_path / "dump.safetensors").manifest["input"]["tokens"] == [1, 2]


def test_tokens_that_contradict_the_passes_are_refused(small):
    with pytest.raises(DumpError, match="reads token 3 at position 1, where 2 is the prompt's token"):
        with small(tokens=[1, 2]) as dump, dump.forward([1, 3]):
            pass
    with pytest.raises(DumpError, match=r"where 5 is what generated\(\) says \(if the tokens were given"):
        with small(tokens=[1, 2]) as dump:
            dump.generated([5, 6])
            with dump.forward([1, 2, 3]):
                pass
    with small() as dump:
        with dump.forward([1, 2]):
            dump.tap("argmax", 3)
        with dump.forward([3]):
            pass
        with pytest.raises(DumpError, match=r"reads token 3 at position 2, where 5 is what generated\(\) says"):
            dump.generated([5, 6])
        dump.generated([3, 6])


def test_teacher_forcing(small, tmp_path):
    with small(tokens=[1, 2]) as dump:
        dump.forced([8, 9])
        with dump.forward([1, 2]):
            dump.tap("argmax", 3)
        with dump.forward([8]):
            dump.tap("argmax", 4)
        with pytest.raises(
            DumpError, match=r"reads token 7 at position 3, where 9 is the token that was given to forced"
        ):
            with dump.forward([7]):
                pass
    assert Reader(tmp_path / "dump.safetensors").manifest["input"] == {"decode": "forced", "tokens": [1, 2]}


# ---------------------------------------------------------------------------------------------------
# Parts of arrays.

Q, K, V = numbers(5, 4, 8), numbers(5, 2, 8) + 1000, numbers(5, 2, 8) + 2000
BESIDE = np.concatenate([part.reshape(5, -1) for part in (Q, K, V)], 1)
BY_HEAD = np.concatenate([Q.reshape(5, 2, 2, 8), K[:, :, None], V[:, :, None]], 2).reshape(5, -1)
GATE, UP = numbers(5, 12), numbers(5, 12) + 1000


@pytest.mark.parametrize(("layout", "array"), [(None, BESIDE), ("beside", BESIDE[None]), ("by_head", BY_HEAD)])
@pytest.mark.parametrize("name", ["dump", "dump.safetensors"])
def test_fused_projections_are_one_array(small, tmp_path, name, layout, array):
    with small(name) as dump, dump.forward([1, 2, 3, 4, 5]):
        dump.tap("qkv", array, layer=1, layout=layout)
    read = Reader(tmp_path / name)
    assert read.manifest["version"] == 2
    assert {row["file"] for row in read.rows} == {"p0/l01/qkv.npy"}
    for tap, part in (("q", Q), ("k", K), ("v", V)):
        np.testing.assert_array_equal(read.value(read.find(tap, 0, 1)), part)


def test_the_contracts_own_example_of_a_part(tmp_path):
    import xcheck

    with xcheck.Dump(tmp_path / "d", producer="t", architecture="llama", n_heads=8, n_kv_heads=2, head_dim=64) as dump:
        with dump.forward([1, 2, 3, 4, 5]):
            dump.tap("qkv", numbers(5, 12 * 64), layer=0, layout="by_head")
    assert Reader(tmp_path / "d").rows[0] == {
        "tap": "q", "pass": 0, "layer": 0, "dtype": "f32", "shape": [5, 8, 64], "file": "p0/l00/qkv.npy",
        "of": {"shape": [5, 2, 6, 64], "start": [0, 0, 0, 0], "end": [5, 2, 4, 64]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "array"),
    [("beside", np.concatenate([GATE, UP], 1)), ("interleaved", np.stack([GATE, UP], 2).reshape(5, -1))],
)
def test_gate_and_up_are_one_array(small, tmp_path, layout, array):
    with small() as dump, dump.forward([1, 2, 3, 4, 5]):
        dump.tap("gate_up", array, layer=0, layout=layout)
    read = Reader(tmp_path / "dump.safetensors")
    np.testing.assert_array_equal(read.value(read.find("ffn_gate", 0, 0)), GATE)
    np.testing.assert_array_equal(read.value(read.find("ffn_up", 0, 0)), UP)


def test_fused_arrays_of_a_batch_and_of_some_rows(small, tmp_path):
    with small() as dump:
        with dump.forward([[1, 2], [3, 4]]):
            dump.tap("qkv", BESIDE[:4].reshape(2, 2, -1), layer=0)
            dump.tap("qkv", BY_HEAD[[1, 3]], layer=1, layout="by_head", rows=[1, 3])
    read = Reader(tmp_path / "dump.safetensors")
    np.testing.assert_array_equal(read.value(read.find("k", 0, 0)), K[:4].reshape(2, 2, 2, 8))
    assert read.find("k", 0, 1)["rows"] == [1, 3]
    np.testing.assert_array_equal(read.value(read.find("v", 0, 1)), V[[1, 3]])


def test_fused_arrays_that_are_cut_are_version_1(small, tmp_path):
    with small(cut_fused=True) as dump, dump.forward([1, 2, 3, 4, 5]):
        dump.tap("qkv", BY_HEAD, layer=0, layout="by_head")
    read = Reader(tmp_path / "dump.safetensors")
    assert read.manifest["version"] == 1
    assert [row["file"] for row in read.rows] == ["p0/l00/q.npy", "p0/l00/k.npy", "p0/l00/v.npy"]
    np.testing.assert_array_equal(read.value(read.find("q", 0, 0)), Q)


# ---------------------------------------------------------------------------------------------------
# Types.


@pytest.mark.parametrize("name", ["dump", "dump.safetensors", "layers"])
def test_short_floats_keep_their_bits_and_scales(small, tmp_path, name):
    bits = np.arange(5 * 32, dtype=np.uint8).reshape(5, 4, 8) % 120
    by_token = numbers(5, 1, 1)
    with small(name, by_layer=name == "layers") as dump, dump.forward([1, 2, 3, 4, 5]):
        dump.tap("q", bits, layer=0, dtype="f8_e4m3", scale=0.5)
        dump.tap("q_norm", bits, layer=0, dtype="f8_e5m2", scale=by_token)
        turned = {"axes": ("head", "token", "head_dim"), "dtype": "f8_e4m3"}
        dump.tap("q_rope", bits.swapaxes(0, 1), layer=0, scale=by_token.swapaxes(0, 1), **turned)
        dump.tap("ffn_out", bits.reshape(5, 32), layer=0, dtype="f8_e4m3")
    read = Reader(tmp_path / name)
    assert read.manifest["version"] == 2
    plain = read.value(read.find("ffn_out", 0, 0)).reshape(5, 4, 8)
    np.testing.assert_array_equal(read.value(read.find("q", 0, 0)), plain * 0.5)
    np.testing.assert_array_equal(read.value(read.find("q_rope", 0, 0)), plain * by_token)
    assert (
        read.find("q_norm", 0, 0)["scale"]
        .replace("#", "/")
        .endswith("p0/l00/q_norm.scale" + (".npy" if name != "layers" else ""))
    )
    assert read.file(read.find("q_norm", 0, 0)["scale"]).dtype == np.float32


def test_scales_that_do_not_fit_are_refused(small):
    bits = np.ones((2, 64), np.uint8)
    with small() as dump, dump.forward([1, 2]):
        with pytest.raises(DumpError, match=r"a scale of shape \[3, 1\] does not fit values of shape \[2, 64\]"):
            dump.tap("embed", bits, dtype="f8_e4m3", scale=numbers(3, 1))
        with pytest.raises(DumpError, match="tap its parts, each with a scale of its own"):
            dump.tap("qkv", bits, layer=0, dtype="f8_e4m3", scale=numbers(2, 1))
        for scale in (0, -1.0, float("nan"), numbers(2, 1) - 1):
            with pytest.raises(DumpError, match="expected positive numbers"):
                dump.tap("embed", bits, dtype="f8_e4m3", scale=scale)
        dump.tap("qkv", bits, layer=0, dtype="f8_e4m3", scale=2)


def test_an_engine_that_goes_on_with_short_floats_says_so(small, tmp_path):
    bits = np.ones((1, 64), np.uint8)
    with small() as dump, dump.forward([1]):
        with pytest.raises(DumpError, match="has to be 'f8_e4m3', the stored type"):
            dump.tap("ffn_norm", bits, layer=0, dtype="f8_e4m3", computed="bf16")
        with pytest.raises(DumpError, match="a type shorter than f32"):
            dump.tap("ffn_norm", numbers(1, 64), layer=0, computed="f8_e4m3")
        dump.tap("ffn_norm", bits, layer=0, dtype="f8_e4m3", computed="f8_e4m3")
    row = Reader(tmp_path / "dump.safetensors").rows[0]
    assert (row["dtype"], row["computed"]) == ("f8_e4m3", "f8_e4m3")


def test_what_was_computed_in_a_shorter_type_says_so(small, tmp_path):
    with small() as dump, dump.forward([1]):
        dump.tap("embed", numbers(1, 32), computed="bf16")
    manifest = Reader(tmp_path / "dump.safetensors").manifest
    assert (manifest["version"], manifest["tensors"][0]["computed"]) == (2, "bf16")
    assert manifest["passes"] == [{"position": 0, "tokens": [1]}]


def test_torch_short_floats(small, tmp_path):
    torch = pytest.importorskip("torch")
    value = torch.tensor(numbers(1, 32))
    with small() as dump, dump.forward(torch.tensor([[1]])):
        dump.tap("embed", value.to(torch.bfloat16))
        dump.tap("final_norm", value.to(torch.float8_e4m3fn))
    read = Reader(tmp_path / "dump.safetensors")
    assert [row["dtype"] for row in read.rows] == ["bf16", "f8_e4m3"]
    np.testing.assert_array_equal(read.value(read.rows[1]), value.to(torch.float8_e4m3fn).float().numpy())
