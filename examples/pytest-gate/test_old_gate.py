"""The old gate: logits are compared with those of the last release, up to a threshold that somebody tuned."""

import numpy as np
import pytest
from engine import TOKENS, VARIANTS, Engine, Variant

GOLDEN = Engine(Variant()).logits(TOKENS)


@pytest.mark.parametrize("name", VARIANTS)
def test_allclose(name):
    np.testing.assert_allclose(Engine(VARIANTS[name]).logits(TOKENS), GOLDEN, rtol=0, atol=0.02)


@pytest.mark.parametrize("name", VARIANTS)
def test_nmse(name):
    error = Engine(VARIANTS[name]).logits(TOKENS) - GOLDEN
    assert (error**2).sum() / (GOLDEN**2).sum() <= 1e-4
