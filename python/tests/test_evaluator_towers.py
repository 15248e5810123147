"""Vision towers of Qwen-VL: patches and their grid in place of tokens, recorded by `xcheck.hook`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from test_evaluator import Judged  # noqa: E402
from test_evaluator_causes import causes_of  # noqa: E402

import xcheck  # noqa: E402

SIZES = dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=48, out_hidden_size=24, patch_size=4)
TOWERS = {
    "Qwen2_5_VisionTransformerPretrainedModel": (
        "Qwen2_5_VLVisionConfig",
        dict(window_size=16, fullatt_block_indexes=[1]),
    ),
    "Qwen3VLVisionModel": ("Qwen3VLVisionConfig", dict(num_position_embeddings=25, deepstack_visual_indexes=[0])),
}
GRID = torch.tensor([[1, 8, 6], [1, 4, 4]])
PATCHES = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))


def judged(name, tmp_path, dtype=torch.float32, **wrong):
    """Judges a run of a tower; `wrong` are other values of its configuration."""
    config_class, options = TOWERS[name]
    config, model_class = getattr(transformers, config_class)(**SIZES, **options), getattr(transformers, name)
    torch.manual_seed(0)
    model_class._from_config(config).save_pretrained(tmp_path / "model")
    for key, value in wrong.items():
        setattr(config, key, value)
    model = model_class.from_pretrained(tmp_path / "model", config=config, dtype=dtype, attn_implementation="eager")
    with xcheck.hook(model.eval(), tmp_path / "dump.safetensors"), torch.no_grad():
        model(PATCHES.to(dtype), grid_thw=GRID)
    return Judged(tmp_path / "model", tmp_path / "dump.safetensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", TOWERS)
def test_a_correct_run_of_a_tower_passes(tmp_path, name, dtype):
    result = judged(name, tmp_path, dtype)
    assert len(result.sites) > 20 and not result.wrong and not result.missing


def test_windows_of_another_size_are_named(tmp_path):
    """The tower sorts its rows by windows outside of any module."""
    result = judged("Qwen2_5_VisionTransformerPretrainedModel", tmp_path, window_size=32)
    (cause,) = causes_of(result)
    assert cause["key"] == "window_size"
