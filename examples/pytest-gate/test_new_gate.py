"""The new gate: each operation is judged by what rounding can cause there. There is no threshold."""

import pytest
from engine import TOKENS, VARIANTS, Engine

import xcheck


@pytest.mark.parametrize("name", VARIANTS)
def test_xcheck(name, xcheck_dump):
    variant = VARIANTS[name]
    settings = {"dtype": "f32", "kv_cache": variant.kv_cache}
    with xcheck_dump(tokens=TOKENS, architecture="llama", settings=settings) as dump, dump.forward(TOKENS):
        Engine(variant).logits(TOKENS, dump.tap)
    xcheck.assert_faithful(dump, model="tiny-llama2c-v0")
