"""Embedding models of sentence-transformers: pooling, dense layers and normalisation are judged as modules."""

from __future__ import annotations

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3Model  # noqa: E402

import xcheck  # noqa: E402
from xcheck.evaluator.bounds import violations  # noqa: E402
from xcheck.evaluator.errors import EvaluatorError  # noqa: E402
from xcheck.evaluator.evaluation import Session  # noqa: E402

torch.set_num_threads(1)
SIZES = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TEXT = "t5 t9 t33 t21 t7 t50 t44"


def made(folder, kind: str, mode: str):
    """Makes an embedding model with seeded random weights, and returns its directory."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(0)
    inner = (
        BertModel(BertConfig(**SIZES))
        if kind == "bert"
        else Qwen3Model(Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8))
    )
    inner.save_pretrained(folder / "inner")
    tokens = {"[UNK]": 0, "[PAD]": 1, **{f"t{number}": number for number in range(2, 64)}}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder / "inner")
    parts = [Transformer(str(folder / "inner")), Pooling(32, pooling_mode=mode), Dense(32, 16), Normalize()]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "model"))
    return folder / "model"


def wrong(path, dump) -> list[str]:
    """Returns the modules of a dump whose values rounding does not explain, in the order of execution."""
    session, found, seen = Session(str(path), str(dump), 4), [], []
    session.load()

    def take(message, tensors):
        assert message["message"] != "missing", message
        if message["message"] == "site":
            seen.append(message["module"])
            stored = session.dump.value(session.dump.rows[message["module"], message["call"], message["pass"]])
            if violations(stored, tensors["exact"], tensors["sigma"]):
                found.append(message["module"])

    session.run(take)
    assert seen[-3:] == ["1", "2", "3"]
    return found


def recorded(path, out, fault=None):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(path), device="cpu")
    if fault is not None:
        fault(model)
    with xcheck.hook(model, out):
        model.encode([TEXT])
    return out


@pytest.mark.parametrize("kind, mode", [("bert", "mean"), ("bert", "cls"), ("qwen3", "lasttoken")])
def test_pooling_and_normalisation_are_judged(tmp_path, kind, mode):
    path = made(tmp_path, kind, mode)
    right = recorded(path, tmp_path / "right.safetensors")
    assert wrong(path, right) == []

    def without_bias(model):
        torch.nn.init.zeros_(model[2].linear.bias)

    assert wrong(path, recorded(path, tmp_path / "bias.safetensors", without_bias)) == ["2"]
    other = shutil.copytree(path, tmp_path / "other")
    config = json.loads((other / "1_Pooling/config.json").read_text())
    config["pooling_mode"] = "max"
    (other / "1_Pooling/config.json").write_text(json.dumps(config))
    assert wrong(other, right) == ["1"]


def test_weights_that_are_not_in_the_files_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    path = made(tmp_path, "bert", "mean")
    dump = recorded(path, tmp_path / "right.safetensors")
    weights = load_file(path / "model.safetensors")
    save_file({name: value for name, value in weights.items() if "pooler" not in name}, path / "model.safetensors")
    with pytest.raises(EvaluatorError, match="2 weights are missing"):
        Session(str(path), str(dump), 4).load()
