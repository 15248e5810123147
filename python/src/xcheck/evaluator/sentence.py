"""Embedding models of sentence-transformers: a transformers model, then pooling, dense layers and normalisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .candidate import Dump
from .errors import EvaluatorError

LIST = "modules.json"  # the modules of an embedding model, in its directory
INNER = ("model", "auto_model")  # names of the transformers model, in new and old versions


def is_sentence_model(path: str, dump: Dump) -> bool:
    """Returns true if the dump has the numbered modules of an embedding model, and the directory lists them."""
    numbered = any(name.partition(".")[0].isdigit() for name in dump.modules)
    return numbered and (Path(path) / LIST).is_file()


def load_sentence_model(path: str, dump: Dump, load_inner: Any) -> Any:
    """Loads an embedding model. `load_inner` loads the transformers model of a class, and checks its weights."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise EvaluatorError(
            "model",
            f"{path}/{LIST}: this model's pooling needs sentence-transformers, which is not installed; install it "
            "in the environment (pip install sentence-transformers), and give the environment with --python",
        ) from error
    options = {"dtype": dump.dtype, "attn_implementation": "eager"}
    try:
        model = SentenceTransformer(
            path, device="cpu", trust_remote_code=False, local_files_only=True, model_kwargs=options
        )
        inner = next(name for name in INNER if name in model[0]._modules)
    except MemoryError:
        raise
    except Exception as error:
        raise EvaluatorError("model", f"cannot load {path}: {type(error).__name__}: {error}; check {LIST}") from error
    loaded = load_inner(type(getattr(model[0], inner)))
    setattr(model[0], inner, loaded)
    model.config = loaded.config
    return model.to(dump.dtype).eval()
