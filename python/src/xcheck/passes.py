"""The rows of a forward pass: which token of which sequence, at which position, each of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .arrays import Array, integers, token_ids
from .axes import Extent
from .errors import DumpError
from .heads import Heads

PADDING = -1  # the sequence of a row that belongs to none, while rows are read


@dataclass(frozen=True)
class Rows:
    """What a pass reads, row by row; a batch is B · T rows, one entry behind the other."""

    tokens: list[int]
    sequence: list[int | None]
    position: list[int]
    batch: tuple[int, int] | None  # (B, T), where B is more than one

    @property
    def sequences(self) -> list[int]:
        """Those that the pass reads, in the order in which they stand in it."""
        return list(dict.fromkeys(index for index in self.sequence if index is not None))

    def of(self, sequence: int) -> list[int]:
        """The tokens that the pass reads of a sequence."""
        return [token for token, index in zip(self.tokens, self.sequence) if index == sequence]

    @property
    def entries_read(self) -> list[int]:
        """The entries of the batch that have a row which is no padding."""
        count, length = self.batch or (1, len(self.tokens))
        rows = [self.sequence[entry * length : (entry + 1) * length] for entry in range(count)]
        return [entry for entry, row in enumerate(rows) if any(index is not None for index in row)]

    def without_latest(self, count: int) -> Rows:
        """The same, but that the latest `count` rows of each entry are of no sequence."""
        length = self.batch[1] if self.batch else len(self.tokens)
        kept = [row % length < length - count for row in range(len(self.tokens))]
        sequence = [owner if stays else None for owner, stays in zip(self.sequence, kept)]
        position = [place if stays else 0 for place, stays in zip(self.position, kept)]
        return replace(self, sequence=sequence, position=position)

    def check_position(self, given: Any) -> None:
        """Whether positions that the engine gave (of each row, or the first of each entry) are those of the rows."""
        for owner, expected, position in zip(self.sequence, self.position, self._claimed(given)):
            if owner is not None and position != expected:
                raise DumpError(
                    f"a row of sequence {owner} is at position {position}, expected {expected}: sequences start at 0 "
                    "and go on where they stopped. Padding does not count (give transformers position_ids), another "
                    "prompt is another sequence: sequence=1"
                )

    def shifts(self, given: Any) -> dict[int, int | None]:
        """How far given positions are from those of the rows, by sequence; None if that differs between rows."""
        found: dict[int, int | None] = {}
        for owner, expected, position in zip(self.sequence, self.position, self._claimed(given)):
            if owner is not None and found.setdefault(owner, position - expected) != position - expected:
                found[owner] = None
        return found

    def paddings(self) -> dict[int, int]:
        """How many rows of its entry are in front of the first row of each sequence."""
        length = self.batch[1] if self.batch else len(self.tokens)
        found: dict[int, int] = {}
        for row, owner in enumerate(self.sequence):
            if owner is not None:
                found.setdefault(owner, row % length)
        return found

    def _claimed(self, given: Any) -> list[int]:
        """The position that an engine gave each row."""
        shape = self.batch or (len(self.tokens),)
        claimed = integers(given)
        if claimed.ndim == 2 and len(claimed) == 1 and self.batch is None:
            claimed = claimed[0]
        if claimed.ndim == 0 or (self.batch and claimed.shape == shape[:1]):
            claimed = claimed[..., None] + np.arange(shape[-1])
        try:
            positions: list[int] = np.broadcast_to(claimed, shape).reshape(-1).tolist()
        except ValueError:
            raise DumpError(f"position of shape {list(claimed.shape)} for rows of shape {list(shape)}") from None
        return positions


@dataclass
class Pass:
    """A forward pass, and what has been tapped in it."""

    index: int
    rows: Rows
    keys: Any = None
    temperature: float | None = None
    held: set[tuple[str, int | None]] = field(default_factory=set)
    outputs: set[tuple[str, int]] = field(default_factory=set)  # modules with the numbers of their calls
    files: dict[tuple[str, tuple[int, ...], str], str] = field(default_factory=dict)  # of outputs, by their content

    def reject(self, count: int) -> None:
        """The latest `count` rows of each entry are of no sequence any more, nor are their keys."""
        self.rows = self.rows.without_latest(count)
        for held in [self.keys] if isinstance(self.keys, dict) else self.keys or []:
            held["sequence"][-count:] = [None] * count
            held["position"][-count:] = [0] * count

    def extent(self, heads: Heads) -> Extent:
        """The lengths of its axes."""
        held = [self.keys] if isinstance(self.keys, dict) else self.keys or []
        keys = max((len(entry["sequence"]) for entry in held), default=None)
        return Extent(len(self.rows.tokens), self.rows.batch, len(self.rows.sequences), heads, keys)

    @property
    def plain(self) -> bool:
        """Whether it reads sequence 0 and nothing else, as version 1 can say."""
        return self.keys is None and self.rows.batch is None and set(self.rows.sequence) <= {0}

    def row(self, plain: bool) -> dict[str, Any]:
        """What the manifest says of it."""
        row: dict[str, Any] = {"tokens": self.rows.tokens}
        if plain:
            row = {"position": self.rows.position[0] if self.rows.position else 0, **row}
        else:
            row.update(sequence=self.rows.sequence, position=self.rows.position)
        if self.keys is not None:
            row["keys"] = self.keys
        if self.temperature is not None:
            row["temperature"] = self.temperature
        return row


def read_rows(tokens: Any, sequence: Any, position: Any, mask: Any, read: Callable[[int], int]) -> Rows:
    """The rows of a pass over `tokens`, [T] or [B, T]; `read` says how many tokens a sequence has read before."""
    if tokens is None:
        return Rows([], [], [], None)
    ids = integers(tokens)
    ids = ids.reshape(1) if ids.ndim == 0 else ids
    if ids.ndim > 2 or ids.size == 0:
        raise DumpError(f"tokens of a pass are [T] or [B, T], not of shape {list(ids.shape)}")
    owners = owners_of(ids, sequence)
    if mask is not None:
        owners = np.where(mask_of(ids, mask), owners, PADDING)
    if (ids[owners != PADDING] < 0).any():
        raise DumpError("token ids are not negative: mark padding with attention_mask= or with sequence=None")
    ids = token_ids(np.maximum(ids, 0))
    positions = positions_of(owners, read)
    flat = [None if owner == PADDING else owner for owner in owners.reshape(-1).tolist()]
    batch = (ids.shape[0], ids.shape[1]) if ids.ndim == 2 and len(ids) > 1 else None
    rows = Rows(ids.reshape(-1).tolist(), flat, positions.reshape(-1).tolist(), batch)
    if position is not None:
        rows.check_position(position)
    return rows


def owners_of(ids: Array, sequence: Any) -> Array:
    """Whose each row is: without a word, entry b of a batch is sequence b."""
    if sequence is None:
        owners = np.zeros(ids.shape, dtype=np.int64)
        return owners + np.arange(len(ids))[:, None] if ids.ndim == 2 else owners
    given = without_none(sequence)
    if ids.ndim == 2 and given.shape == (len(ids),):
        given = given[:, None]
    try:
        return np.array(np.broadcast_to(given, ids.shape))
    except ValueError:
        raise DumpError(
            f"sequence of shape {list(given.shape)} for tokens of shape {list(ids.shape)}: "
            "one number, one for each row, or one for each entry of a batch"
        ) from None


def without_none(sequence: Any) -> Array:
    """Numbers of sequences, with PADDING for None."""

    def number(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [number(part) for part in value]
        return PADDING if value is None else value

    given = integers(number(sequence))
    if (given < PADDING).any():
        raise DumpError(f"sequences count from 0: {given.min()}")
    return given


def mask_of(ids: Array, mask: Any) -> Array:
    """Which rows are no padding: the latest columns of a mask, which may have those of the cache before them."""
    given = integers(mask)
    if given.ndim != ids.ndim or given.shape[:-1] != ids.shape[:-1] or given.shape[-1] < ids.shape[-1]:
        raise DumpError(
            f"attention_mask of shape {list(given.shape)} for tokens of shape {list(ids.shape)}: it has 1 where a "
            "token is and 0 where padding is; say whose rows are whose in a packed pass with sequence="
        )
    return np.asarray(given[..., -ids.shape[-1] :] != 0)


def positions_of(owners: Array, read: Callable[[int], int]) -> Array:
    """Where each row stands: a sequence goes on where it stopped. Padding stands at 0."""
    following: dict[int, int] = {}
    positions = np.zeros(owners.size, dtype=np.int64)
    for row, owner in enumerate(owners.reshape(-1).tolist()):
        if owner != PADDING:
            positions[row] = following.setdefault(owner, read(owner))
            following[owner] += 1
    return positions.reshape(owners.shape)


def checked_temperature(temperature: Any) -> float | None:
    """That of `probs`: readers take a positive number that f32 can hold."""
    if temperature is None:
        return None
    given = float(temperature)
    with np.errstate(over="ignore", under="ignore"):
        held = np.float32(given)
    if not (held > 0 and np.isfinite(held)):
        raise DumpError(f"a temperature of {given:g}, expected a positive number")
    return given


def checked_keys(keys: Any, rows: Rows) -> Any:
    """What attention looks at in the axis `key`: one dictionary, or a list of them for the entries of a batch."""
    if keys is None:
        return None
    if isinstance(keys, Mapping):
        return one_list_of_keys(keys)
    count = rows.batch[0] if rows.batch else 1
    if len(keys) != count:
        raise DumpError(f"keys: {len(keys)} lists for a batch of {count}")
    return [one_list_of_keys(entry) for entry in keys]


def one_list_of_keys(keys: Any) -> dict[str, list[Any]]:
    """{"sequence": [...], "position": [...]}, equally long."""
    if not isinstance(keys, Mapping) or set(keys) != {"sequence", "position"}:
        raise DumpError('keys are {"sequence": [0, 0, None], "position": [0, 1, 0]}, or a list of these for a batch')
    sequence, position = without_none(list(keys["sequence"])), integers(list(keys["position"]))
    if sequence.ndim != 1 or sequence.shape != position.shape:
        raise DumpError(f"keys: {len(sequence)} sequences, but {len(position)} positions")
    owners = [None if owner == PADDING else owner for owner in sequence.tolist()]
    return {"sequence": owners, "position": position.tolist()}
