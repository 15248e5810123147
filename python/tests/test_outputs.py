"""Outputs of modules that an engine writes by itself: `Dump.module` and `Dump.forward(inputs=...)`."""

from __future__ import annotations

import numpy as np
import pytest

from conftest import numbers
from reader import Reader
from xcheck import Dump, DumpError, DumpWarning

PATH = "model.layers.0.mlp"
TOKENS = [1, 2, 3]


def dump_of(out, **options) -> Dump:
    return Dump(out, **{"producer": "test", "architecture": "deepseek_v3", **options})


@pytest.mark.parametrize(
    ("name", "by_layer", "file"),
    [
        ("d.safetensors", False, f"p0/{PATH}"),
        ("d", False, f"p0/{PATH}.npy"),
        ("layers", True, f"rest.safetensors#p0/{PATH}"),
    ],
)
def test_outputs_are_rows_with_module_pass_and_call(tmp_path, name, by_layer, file):
    values = [numbers(1, 3, 4) + call for call in range(3)]
    with dump_of(tmp_path / name, by_layer=by_layer, model_class="DeepseekV3ForCausalLM") as dump:
        with dump.forward(TOKENS):
            assert dump.module(PATH, values[0]) is values[0]
            dump.module(PATH, values[1])
            dump.module("lm_head", np.float16([[[1]]]))
        with dump.forward([4]):
            dump.module(PATH, values[2], call=5)
    read = Reader(tmp_path / name)
    rows = read.outputs()
    assert list(rows) == [(PATH, 0, 0), (PATH, 0, 1), ("lm_head", 0, 0), (PATH, 1, 5)]
    for key, value in zip([(PATH, 0, 0), (PATH, 0, 1), (PATH, 1, 5)], values):
        np.testing.assert_array_equal(read.value(rows[key]), value)
    digest = rows[PATH, 0, 0].pop("sha256")
    assert len(digest) == 64
    told = {"module": PATH, "pass": 0, "call": 0, "dtype": "f32", "shape": [1, 3, 4], "file": file}
    assert rows[PATH, 0, 0] == told
    assert read.manifest["version"] == (2 if by_layer else 1)
    assert read.manifest["model"] == {"architecture": "deepseek_v3", "class": "DeepseekV3ForCausalLM"}


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [([[0, 3]], "u32"), ([[-1, 3]], "i32"), (np.array([1 << 31]), "u32"), (np.array([[1, 2]], dtype=np.uint8), "u32")],
)
def test_whole_numbers_are_ids(tmp_path, ids, dtype):
    with dump_of(tmp_path / "d") as dump, dump.forward(TOKENS):
        dump.module("gate", ids)
    (row,) = Reader(tmp_path / "d").rows
    assert row["dtype"] == dtype
    np.testing.assert_array_equal(Reader(tmp_path / "d").value(row), ids)


def test_equal_outputs_of_a_pass_are_stored_once(tmp_path):
    same, other = numbers(1, 3, 4), numbers(3, 1, 4)
    with dump_of(tmp_path / "d.safetensors") as dump:
        for tokens in (TOKENS, [4, 5, 6]):
            with dump.forward(tokens):
                dump.module("a", same)
                dump.module("a.b", same.copy())
                dump.module("c", other)
                dump.module("d", same + np.float32([[[0, 0, 0, 1]]]))
    rows = Reader(tmp_path / "d.safetensors").outputs()
    assert [rows[path, 0, 0]["file"] for path in ("a", "a.b", "c", "d")] == ["p0/a", "p0/a", "p0/c", "p0/d"]
    assert rows["a.b", 1, 0]["file"] == "p1/a"


def module(dump, *args, **kwargs):
    with dump.forward(TOKENS):
        dump.module(*args, **kwargs)


def twice(dump):
    with dump.forward(TOKENS):
        dump.module(PATH, numbers(1, 3, 4))
        dump.module(PATH, numbers(1, 3, 4), call=0)


def taps_first(dump):
    with dump.forward(TOKENS):
        dump.tap("embed", numbers(3, 4))
        dump.module(PATH, numbers(1, 3, 4))


def modules_first(dump):
    with dump.forward(TOKENS):
        dump.module(PATH, numbers(1, 3, 4))
        dump.tap("embed", numbers(3, 4))


def batch(dump):
    with dump.forward([[1, 2], [3, 4]]):
        dump.module(PATH, numbers(2, 2, 4))


def second_text(dump):
    with dump.forward(TOKENS):
        dump.module(PATH, numbers(1, 3, 4))
    with dump.forward(TOKENS, sequence=1):
        dump.module(PATH, numbers(1, 3, 4))


def inputs(dump, **values):
    with dump.forward(inputs=values):
        dump.module(PATH, numbers(1, 3, 4))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda dump: dump.module(PATH, [1.0]), "there is no pass"),
        (lambda dump: module(dump, "", [1.0]), "invalid module '', expected a path as in model.named_modules()"),
        (lambda dump: module(dump, "../../x", [1.0]), "invalid module '../../x'"),
        (lambda dump: module(dump, "a..b", [1.0]), "invalid module 'a..b'"),
        (lambda dump: module(dump, "a" * 301, [1.0]), "invalid module 'aaa"),
        (lambda dump: module(dump, 3, [1.0]), "invalid module 3"),
        (lambda dump: module(dump, PATH, [1.0], call=-1), "call=-1, expected a whole number from 0 on"),
        (lambda dump: module(dump, PATH, [1.0], call=True), "call=True, expected a whole number"),
        (lambda dump: module(dump, PATH, [True]), f"module {PATH}: a mask is not an output"),
        (lambda dump: module(dump, PATH, [1 << 40]), "do not fit 32 bits"),
        (lambda dump: module(dump, PATH, "text"), f"module {PATH}: .*cannot be"),
        (lambda dump: module(dump, PATH, np.zeros((1, 0, 4))), "an axis of shape .* has no entry"),
        (twice, "call 0 of pass 0 is written already; leave call= out"),
        (taps_first, "the dump has taps; write outputs of modules to a dump of their own"),
        (modules_first, "the dump has outputs of modules; write taps to a dump of their own"),
        (batch, "the pass has a batch of 2, expected 1"),
        (second_text, "the pass reads sequence 1, expected 0 alone"),
        (lambda dump: inputs(dump), "a pass needs tokens, or inputs="),
        (lambda dump: inputs(dump, pixel_values="text"), "input pixel_values: .*cannot be"),
        (lambda dump: inputs(dump, **{"a/b": [1.0]}), "invalid name 'a/b' in inputs="),
    ],
)
def test_wrong_calls_are_refused_with_the_correction(tmp_path, use, message):
    with pytest.raises(DumpError, match=message), dump_of(tmp_path / "d") as dump:
        use(dump)
    assert list(tmp_path.iterdir()) == []


def test_values_of_nothing_are_a_warning(tmp_path):
    with pytest.warns(DumpWarning, match=f"module {PATH} is nothing but zeros") as warned:
        with dump_of(tmp_path / "d") as dump, dump.forward(TOKENS):
            dump.module(PATH, np.zeros((1, 3, 4), dtype=np.float32))
    assert warned[0].filename == __file__


def test_inputs_of_a_pass_stand_in_the_manifest(tmp_path):
    image, mask = numbers(1, 3, 4, 4), np.array([[True, False]])
    with dump_of(tmp_path / "d.safetensors", architecture="siglip_vision_model") as dump:
        with dump.forward(inputs={"pixel_values": image, "attention_mask": mask}):
            dump.module("head", numbers(1, 4))
    read = Reader(tmp_path / "d.safetensors")
    assert (read.manifest["input"], read.manifest["passes"]) == (
        {"decode": "greedy", "tokens": []},
        [{"position": 0, "tokens": []}],
    )
    told = read.manifest["inputs"]["pixel_values"]
    assert told.pop("sha256")
    assert told == {"pass": 0, "file": "p0/inputs/pixel_values", "dtype": "f32", "shape": [1, 3, 4, 4]}
    assert read.manifest["inputs"]["attention_mask"]["type"] == "bool"
    found = read.inputs(0)
    np.testing.assert_array_equal(found["pixel_values"], image)
    np.testing.assert_array_equal(found["attention_mask"], mask)


def test_inputs_of_several_passes_are_a_list(tmp_path):
    with dump_of(tmp_path / "d") as dump:
        for index, tokens in enumerate([TOKENS, [4]]):
            with dump.forward(tokens, inputs={"scale": np.float32([index])}):
                dump.module("head", numbers(1, len(tokens)))
    read = Reader(tmp_path / "d")
    assert [entry["pass"] for entry in read.manifest["inputs"]["scale"]] == [0, 1]
    assert [read.inputs(index)["scale"].tolist() for index in (0, 1)] == [[0], [1]]
