"""A dump, written while an engine runs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from . import likelihoods, manifest, outputs
from .containers import open_container
from .errors import DumpError
from .heads import Heads, read_config
from .passes import Pass, Rows, checked_keys, checked_temperature, read_rows
from .sequences import Sequence as Text
from .sequences import ids, prompts
from .values import Manner, Values

Value = TypeVar("Value")


class Dump:
    """Writes what an engine computes to `out`: a `.safetensors` file or a directory.

    Used with `with`, it stands under its name when the block ends, and not at all if the block raises.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        producer: str,
        architecture: str | None = None,
        model: str | None = None,
        model_class: str | None = None,
        tokens: Any = None,
        prompt: str | Sequence[str] | None = None,
        version: str | None = None,
        settings: Mapping[str, Any] | None = None,
        rounding: Mapping[str, Any] | None = None,
        rope_pairing: str | None = None,
        config: Any = None,
        n_heads: int | None = None,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        n_layers: int | None = None,
        sha256: str | None = None,
        by_layer: bool = False,
        cut_fused: bool = False,
    ):
        """Opens a dump.

        producer, version: the engine. architecture, model, sha256: what it runs (llama, qwen3, gpt2, ...).
        model_class: the class of a torch model (BertForMaskedLM), for outputs of modules.
        tokens, prompt: the prompt, or a list of them; without tokens, what the first pass of a sequence reads.
        settings, rounding: of the producer, as the contract has them ({"dtype": "bf16"}).
        rope_pairing: "half" as transformers pairs, or "interleaved" as llama.cpp's llama does.
        config: transformers' configuration, or config.json as a dictionary: tells architecture, layers and heads.
        by_layer: a directory with one .safetensors for each layer, instead of .npy files.
        cut_fused: fused arrays are written as an array for each part, which version 1 of the contract can say.
        """
        self._out = os.fspath(out)
        known = read_config(config)
        self.heads = Heads(
            n_heads or known.heads.n_heads,
            n_kv_heads or known.heads.n_kv_heads or n_heads,
            head_dim or known.heads.head_dim,
        )
        self.n_layers = n_layers or known.n_layers
        self._head = _head(
            producer=_without_none(name=producer, version=version, settings=settings, rounding=rounding),
            model=_without_none(
                name=model,
                architecture=architecture or known.architecture,
                sha256=sha256,
                **{"class": model_class},
            ),
            rope_pairing=rope_pairing,
        )
        self._texts = prompts(tokens, prompt)
        for text in self._texts:
            manifest.plain("prompt", text.prompt)
        self._passes: list[Pass] = []
        self._inputs: dict[str, list[dict[str, Any]]] = {}
        self._open: Pass | None = None
        self._broken: str | None = None
        self._container = open_container(out, by_layer)
        self._values = Values(self._container, self.heads, self.n_layers, cut_fused)
        self._discard = weakref.finalize(self, self._container.discard)

    # -----------------------------------------------------------------------------------------------
    # Passes.

    @contextmanager
    def forward(
        self,
        tokens: Any = None,
        *,
        sequence: Any = None,
        position: Any = None,
        attention_mask: Any = None,
        keys: Any = None,
        temperature: float | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> Iterator[Pass]:
        """One forward pass over `tokens`, [T] or a batch [B, T].

        sequence: whose rows these are, from 0 on, None for padding: one number, one for each row, or for each entry
            of a batch. Without it, the entries of a batch are the sequences 0 to B - 1.
        position: where the engine believes the rows stand: checked, since they follow from the passes before.
        attention_mask: 1 where a token is and 0 where padding is, [B, T], or with the cache's columns before them.
        keys: what attention looks at, if not what was read so far: {"sequence": [...], "position": [...]}.
        temperature: that of `probs`.
        inputs: other arrays that the model is given, by the names of its arguments: {"pixel_values": images}. A model
            without tokens has these alone.
        """
        if tokens is None and not inputs:
            raise DumpError("a pass needs tokens, or inputs={...} of a model that reads none")
        current = self._begin(tokens, sequence, position, attention_mask, keys, temperature)
        for name, value in (inputs or {}).items():
            self._inputs.setdefault(name, []).append(outputs.write_input(self._container, current, name, value))
        try:
            yield current
        except BaseException as error:
            self._broken = f"pass {current.index} was left by {type(error).__name__}"
            raise
        finally:
            self._open = None

    def _begin(self, tokens: Any, sequence: Any, position: Any, mask: Any, keys: Any, temperature: Any) -> Pass:
        self._check_usable()
        if self._open is not None:
            raise DumpError(f"pass {self._open.index} has not ended: passes do not lie inside each other")
        rows = read_rows(tokens, sequence, position, mask, self._count_read)
        if rows.tokens and not rows.sequences:
            raise DumpError("the pass has nothing but padding")
        current = Pass(len(self._passes), rows, checked_keys(keys, rows), checked_temperature(temperature))
        self._read(rows)
        self._passes.append(current)
        self._open = current
        return current

    def _read(self, rows: Rows) -> None:
        """The sequences read their rows, if these are what each of them has to read."""
        new = range(len(self._texts), max(rows.sequences, default=-1) + 1)
        skipped = [index for index in new if index not in rows.sequences]
        if skipped:
            raise DumpError(f"sequences count from 0: there is no row of sequence {skipped[0]}")
        texts = [*self._texts, *map(Text, new)]
        read = {index: rows.of(index) for index in rows.sequences}
        for index, tokens in read.items():
            texts[index].check(tokens, len(texts[index].read))
        for index, tokens in read.items():
            texts[index].extend(tokens)
        self._texts = texts

    def reject(self, count: int) -> None:
        """The latest `count` rows of each entry of the pass at hand were drafts, and are turned down.

        They become rows of no sequence: what was tapped of them stays, and is not looked at. `last_logits`, `probs` and
        `argmax` are of a row that is kept, and are tapped afterwards.
        """
        if self._open is None:
            raise DumpError("there is no pass whose rows could be rejected")
        before = self._open.rows
        self._open.reject(count)
        for index in before.sequences:
            self._texts[index].forget(len(before.of(index)) - len(self._open.rows.of(index)))

    def _count_read(self, sequence: int) -> int:
        return len(self._texts[sequence].read) if sequence < len(self._texts) else 0

    def _text(self, sequence: int) -> Text:
        self._check_usable()
        if sequence > len(self._texts):
            raise DumpError(f"sequences count from 0: there is no sequence {len(self._texts)} before {sequence}")
        if sequence == len(self._texts):
            self._texts.append(Text(sequence))
        return self._texts[sequence]

    def generated(self, tokens: Any, *, sequence: int = 0) -> None:
        """The greedy continuation: a token after the prompt, and one after each later pass."""
        self._text(sequence).choose(ids(tokens))

    def setting(self, name: str, value: Any) -> None:
        """Adds to the producer's settings what turned out while it ran."""
        self._check_usable()
        told = manifest.plain(name, value)
        self._head["producer"].setdefault("settings", {})[name] = told

    def forced(self, tokens: Any = None, *, sequence: int = 0) -> None:
        """The tokens after the prompt are given, and need not be what the model would choose."""
        self._text(sequence).force(None if tokens is None else ids(tokens))

    # -----------------------------------------------------------------------------------------------
    # Values.

    def tap(
        self,
        name: str,
        value: Value,
        layer: int | None = None,
        *,
        axes: Sequence[str] | None = None,
        rows: Sequence[int] | None = None,
        layout: str | None = None,
        dtype: str | None = None,
        scale: Any = None,
        computed: str | None = None,
        step: float | None = None,
    ) -> Value:
        """Writes a value of the current pass, and gives it back.

        axes: the value's own, where they are not the tap's: ("head", "token", "head_dim").
        rows: the rows of the pass that the value holds, in ascending order, where these are not all.
        layout: how "qkv" (beside, by_head) and "gate_up" (beside, interleaved) lie in one array.
        dtype: the type of raw bits (bf16, f8_e4m3, f8_e5m2) in an array of whole numbers.
        scale: what f8 values are multiplied with: a positive number, or an array of such that fits by NumPy's rules.
            An f8 value is judged to half a step of f8 there, times its scale; nothing should be clamped to the end of
            the range.
        computed: the type (f32, f16, bf16) that values were rounded to before they were stored in a longer one. Of f8,
            their own type: the engine goes on with the values that are stored. Without it no stage is judged from them.
        step: what log-probabilities are multiples of, where they were written with few decimals: 0.0001.
        """
        if self._open is None:
            self._check_usable()
            raise DumpError(f"{name}: there is no pass; write `with dump.forward(tokens):` around the model's call")
        self._values.write(self._open, name, value, layer, Manner(axes, rows, layout, dtype, scale, computed, step))
        return value

    def module(self, path: str, value: Value, call: int | None = None) -> Value:
        """Writes the output of a torch module in the current pass, and gives it back.

        path: as in `model.named_modules()`, such as "model.layers.0.mlp"; "logits" for what the model returns.
        value: the output in the module's own shape, batch axis included; the batch has one entry.
        call: which call of the module in this pass it is, from 0 on. Without it, the next.
        """
        self._write_output(path, value, call)
        return value

    @property
    def has_modules(self) -> bool:
        """True if outputs of modules were written, and no taps."""
        return self._values.has_modules

    def _write_output(self, path: str, value: Any, call: int | None, warn: bool = True, repeats: bool = True) -> None:
        """Writes the output of a module.

        warn: of a value that was probably not computed. repeats: also write what is the output of another module.
        """
        if self._open is None:
            self._check_usable()
            raise DumpError(f"{path}: there is no pass; write `with dump.forward(tokens):` around the model's call")
        outputs.write(self._values, self._open, path, value, call, warn, repeats)

    def _check_usable(self) -> None:
        if not self._discard.alive:
            raise DumpError("the dump has been closed")

    # -----------------------------------------------------------------------------------------------
    # The end.

    def close(self) -> None:
        """Writes the manifest, and moves the dump into place."""
        if not self._discard.alive:
            return
        try:
            if self._open is not None:
                raise DumpError(f"pass {self._open.index} has not ended")
            if self._broken is not None:
                raise DumpError(f"{self._broken}: nothing was written")
            if not self._values.rows:
                raise DumpError("nothing was tapped: nothing was written")
            unread = [text.index for text in self._texts if not text.read]
            if unread:
                raise DumpError(f"sequence {unread[0]} is read by no pass: nothing was written")
            likelihoods.check(self._values.rows, self._passes, self._texts)
            self._container.finish(
                manifest.build(self._head, self._texts, self._passes, self._values.rows, self._inputs)
            )
        finally:
            self.abort()

    def abort(self) -> None:
        """Removes what has not been moved into place."""
        self._discard()

    def __fspath__(self) -> str:
        """The path of the dump, so that a closed dump can be given to `xcheck.check`."""
        return self._out

    def __enter__(self) -> Dump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _head(producer: dict[str, Any], model: dict[str, Any], rope_pairing: str | None) -> dict[str, Any]:
    """What the manifest says of producer and model."""
    if not producer.get("name"):
        raise DumpError("producer= has to name the engine")
    if not model.get("architecture"):
        raise DumpError("architecture= has to name the family of the model (llama, qwen3, gemma3, gpt2, bitnet, ...)")
    if rope_pairing not in (None, "half", "interleaved"):
        raise DumpError(f"rope_pairing={rope_pairing!r}: it is 'half' (i, i + d/2) or 'interleaved' (2i, 2i + 1)")
    head = {"producer": producer, "model": model, "layout": _without_none(rope_pairing=rope_pairing)}
    return {name: manifest.plain(name, told) for name, told in head.items()}


def _without_none(**fields: Any) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if value is not None
    }
