"""Follows the calls of a torch model: which sequences each continues, what it chooses, what its cache holds."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import Array, integers
from .caches import is_quantized
from .dump import Dump
from .errors import DumpError, DumpWarning
from .passes import PADDING

TOKENS = ("input_ids", "tokens", "idx", "input_tokens", "ids")
POSITIONS = ("position_ids", "cache_position", "positions", "input_pos", "start_pos")
CACHES = ("past_key_values", "cache", "cache_params")  # as releases of transformers name it, and as Mamba does
MOST_DRAFTS = 64  # as many of the latest rows of a pass may be turned down
KEYS = ("batch", "kv_head", "key", "head_dim")  # a cache's axes
NEW_KEYS = ("batch", "kv_head", "token", "head_dim")


@dataclass
class Group:
    """The sequences that lie in one cache, one for each entry of its batch."""

    sequences: list[int]
    finished: set[int] = field(default_factory=set)  # entries that go on with padding
    keys: list[dict[str, list[Any]]] = field(default_factory=list)  # of each entry, whose keys the cache holds
    read: Counter[int] = field(default_factory=Counter)  # tokens of each sequence
    latest: int = 0  # the latest rows of each entry: those that the last pass has read
    was_cut: bool = False  # drafts were turned down: the cache holds less than was read
    was_moved: bool = False  # its entries are not those that the sequences are in

    def extend(self, owners: Array) -> None:
        """The cache is given the rows of a pass."""
        self.keys = self.keys or [{"sequence": [], "position": []} for _ in owners]
        self.latest = owners.shape[1]
        for held, row in zip(self.keys, owners.tolist()):
            for owner in row:
                held["sequence"].append(None if owner == PADDING else owner)
                held["position"].append(0 if owner == PADDING else self.read[owner])
                self.read[owner] += 1

    def cut(self, count: int) -> None:
        """The cache gives the latest rows of each entry back."""
        for held in self.keys:
            self.read.subtract(owner for owner in held["sequence"][-count:] if owner is not None)
            del held["sequence"][-count:], held["position"][-count:]
        self.latest -= count
        self.was_cut = True

    @property
    def cached(self) -> int:
        """How many rows of each entry the cache has been given."""
        return len(self.keys[0]["sequence"]) if self.keys else 0


@dataclass
class Call:
    """What a call of the model reads."""

    tokens: Array | None
    sequence: list[list[int | None]] | None
    position: Any
    keys: Any
    inputs: dict[str, Any] | None = None  # tensor arguments that do not follow from the tokens


@dataclass
class Choice:
    """What a sequence has chosen: tokens, and those that its latest logits allow."""

    tokens: list[int] = field(default_factory=list)
    best: list[int] = field(default_factory=list)  # more than one where the largest logits are equal
    greedy: bool = True


class Calls:
    """All calls of a model so far."""

    def __init__(self, dump: Dump, model: Any):
        self.dump = dump
        self.groups: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()  # by cache
        self.count = 0  # groups so far
        self.group = Group([])  # that of the call at hand
        self.held: Any = None  # logits of the latest rows of that call, some of which may be turned down
        self.owners: Array = np.zeros((0, 0), dtype=np.int64)
        self.choices: list[Choice] = []
        self.chosen: dict[str, Any] = {}  # what the latest call chooses, unless its last rows are turned down
        self.padding = padding_of(model)

    # -----------------------------------------------------------------------------------------------
    # What a call reads.

    def read(self, arguments: dict[str, Any]) -> Call:
        """The rows of a call."""
        tokens = token_ids(arguments)
        position = next((arguments[name] for name in POSITIONS if arguments.get(name) is not None), None)
        self.owners = owners = self._owners(tokens, position, arguments)
        self.group.extend(owners)
        self.held = None
        # Each group has a cache of its own. With one alone that was never cut, that is what the contract presumes.
        presumed = self.count == 1 and not self.group.was_cut
        keys = None if presumed else self.group.keys if len(tokens) > 1 else self.group.keys[0]
        sequence = [[None if owner == PADDING else owner for owner in row] for row in owners.tolist()]
        return Call(tokens, sequence, position if getattr(position, "ndim", 0) <= 2 else None, keys)

    def _owners(self, tokens: Array, position: Any, arguments: dict[str, Any]) -> Array:
        """The sequence of each row, [B, T]; the call's group is at hand then."""
        cache = next((arguments[name] for name in CACHES if arguments.get(name) is not None), None)
        if arguments.get("read_index") is not None or arguments.get("block_table") is not None:
            raise DumpError(
                "the model is called by continuous batching, whose paged cache is not followed: call "
                "model.generate(...) with a batch"
            )
        if is_quantized(cache):
            raise DumpError(
                "the cache is quantized: attention reads other keys and values than it was given, and a dump cannot "
                'say which; leave cache_implementation="quantized" out'
            )
        cached = self._cached(cache)
        mask = mask_of(arguments.get("attention_mask"), None if cache is None else cached, tokens.shape)
        firsts = packed_at(tokens, position) if mask is None or mask.all() else []
        if len(firsts) > 1 and not cached:
            self.group = self._new_group(None, len(firsts))
            count = np.cumsum(np.isin(np.arange(tokens.shape[1]), firsts)) - 1
            packed: Array = np.array(self.group.sequences)[count][None]
            return packed
        self.group = self._continued(cache, position, len(tokens))
        owners = np.array(self.group.sequences)[:, None] + np.zeros_like(tokens)
        if mask is not None:
            owners = np.where(mask, owners, PADDING)
        self._follow(tokens, owners)
        return owners

    def _continued(self, cache: Any, position: Any, entries: int) -> Group:
        """The group that a call goes on with, or a new one."""
        cached = self._cached(cache)
        if cached:
            known = self._group_of(cache)
            if known is None:
                raise DumpError(
                    "the model's cache was filled before the hook, or is a copy of another: its first tokens are not "
                    "in the dump; give the model the whole text, and no cache"
                )
            if known.was_moved:
                raise DumpError(
                    "the entries of the model's cache were moved or repeated, as in beam search: they do not go on "
                    "with what they have read; dump with num_beams=1, and give each beam's text as a prompt of its own"
                )
            if cached < known.cached:
                self._cut(known, known.cached - cached)
        elif cache is None and position is not None and integers(position).max() > 0 and self._starts_later(position):
            known = self.group
        else:
            return self._new_group(cache, entries)
        if len(known.sequences) != entries:
            raise DumpError(f"a batch of {entries} goes on with one of {len(known.sequences)}")
        return known

    def _cached(self, cache: Any) -> int:
        """Returns how many rows of each entry a cache has been given.

        The caches of recurrent layers do not count them: those of the group that was seen to fill the cache.
        """
        try:
            return cache_length(cache)
        except ValueError:
            group = self._group_of(cache)
            if not cache.has_previous_state():
                return 0
            return group.cached if group is not None else 1

    def _cut(self, group: Group, count: int) -> None:
        """The cache was cut back: drafts of the pass at hand were turned down."""
        known = count if self.held is None else self.held.shape[1]
        if group is not self.group or count > group.latest or (known <= count < group.latest and self.held is not None):
            raise DumpError(
                f"the model's cache was cut back by {count} tokens: a dump can take back drafts of the latest pass "
                f"alone, fewer than {MOST_DRAFTS}, whose logits were computed; give each text that begins alike a "
                "cache of its own"
            )
        self.dump.reject(count)
        group.cut(count)
        self.owners[:, -count:] = PADDING
        for sequence in group.sequences:
            self.choices[sequence].best, self.choices[sequence].greedy = [], False
        self.chosen = {}
        if self.held is not None:
            self._choose_all(self.held)

    def see_moved(self, cache: Any, order: Callable[[int], Array]) -> None:
        """The entries of a cache were moved, which matters if it is read again."""
        group = self._group_of(cache)
        if group is not None:
            now = order(len(group.sequences))
            group.was_moved = group.was_moved or now.tolist() != list(range(len(group.sequences)))

    @staticmethod
    def _starts_later(position: Any) -> bool:
        """Whether the first row of every entry has others before it."""
        given = integers(position)
        return bool((given[..., 0] if given.ndim else given).min() > 0)

    def _new_group(self, cache: Any, entries: int) -> Group:
        first = len(self.choices)
        self.choices += [Choice() for _ in range(entries)]
        group = Group(list(range(first, first + entries)))
        self.count += 1
        self.remember(cache, group)
        return group

    def _group_of(self, cache: Any) -> Group | None:
        try:
            return self.groups.get(cache)
        except TypeError:  # a tuple, as caches were once
            return self.group

    def remember(self, cache: Any, group: Group | None = None) -> None:
        """A cache is that of a group: of the call at hand, if none is named."""
        try:
            if cache is not None:
                self.groups[cache] = group or self.group
        except TypeError:
            pass

    def _follow(self, tokens: Array, owners: Array) -> None:
        """Marks sequences that have ended as padding, and sees which tokens were not chosen but given.

        generate() goes on with padding in the entries of a batch that have ended, and says so nowhere.
        """
        for entry, sequence in enumerate(self.group.sequences):
            rows = np.flatnonzero(owners[entry] != PADDING)
            choice = self.choices[sequence]
            if not len(rows) or not choice.best:
                continue
            token = int(tokens[entry, rows[0]])
            greedy = token in choice.best and len(rows) == 1
            if not greedy and len(owners) > 1 and len(rows) == 1 and token in self.padding:
                self.group.finished.add(entry)
            if entry in self.group.finished:
                owners[entry] = PADDING
            elif greedy:
                choice.tokens[-1] = token
            else:
                choice.greedy = False

    # -----------------------------------------------------------------------------------------------
    # What a call computes.

    def see_logits(self, logits: Any, one_row: bool = False) -> Iterator[tuple[str, Any, list[int] | None]]:
        """The taps that follow from logits, [B, T, V] or of the latest rows alone: name, value, rows if not all.

        one_row: give the latest row even if there is no other. Else it is `last_logits` alone.
        """
        if logits.ndim == 2:
            logits = logits[None]
        entries, length = self.owners.shape
        kept = logits.shape[1]
        if logits.shape[0] != entries or kept > length:
            raise DumpError(f"logits of shape {list(logits.shape)} for tokens of shape {[entries, length]}")
        if kept == length:
            yield "logits", logits, None
        elif kept > 1 or one_row:
            rows = [entry * length + row for entry in range(entries) for row in range(length - kept, length)]
            yield "logits", logits.reshape(-1, logits.shape[-1]), rows
        self._choose_all(logits)
        self.held = logits[:, -MOST_DRAFTS:].detach().clone()

    def _choose_all(self, logits: Any) -> None:
        """What each sequence of the call chooses, after its last row."""
        length, kept = self.owners.shape[1], logits.shape[1]
        last = [
            np.argwhere(self.owners == sequence)[-1]
            for sequence in dict.fromkeys(self.owners.reshape(-1).tolist())
            if sequence != PADDING
        ]
        if any(row < length - kept for _, row in last):
            warnings.warn("the last logits are of padding: pad on the left", DumpWarning, stacklevel=2)
            return
        chosen = [logits[entry, row - length + kept] for entry, row in last]
        if not chosen:
            return
        choices = [self._choose(int(self.owners[tuple(place)]), row) for place, row in zip(last, chosen)]
        self.chosen = {"last_logits": sys.modules["torch"].stack(chosen), "argmax": choices}

    def _choose(self, sequence: int, logits: Any) -> int:
        """The greedy choice of a sequence: the lowest of the largest."""
        row = logits.detach().float().cpu().numpy()
        choice = self.choices[sequence]
        choice.best = np.flatnonzero(row == row.max()).tolist() or [0]
        choice.tokens.append(choice.best[0])
        return choice.best[0]

    def see_cache(self, new: Any, keys: Any, values: Any) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """The taps of a cache that attention has extended: name, value, axes."""
        if new.ndim != 4 or new.shape[2] != self.owners.shape[1]:  # another model's
            return
        yield "k_rope", new, NEW_KEYS
        yield "k_cache", keys[:, :, : self.group.cached], KEYS
        yield "v_cache", values[:, :, : self.group.cached], KEYS

    def filled(self, weights: Any, axis: int) -> Any:
        """Attention's weights, without those of the keys of a static cache that nobody has written."""
        return weights.narrow(axis, 0, min(weights.shape[axis], self.group.cached))

    def tell_choices(self) -> None:
        """Tells the dump what was generated, and of which sequences the tokens were given."""
        for sequence, choice in enumerate(self.choices):
            if not choice.greedy:
                self.dump.forced(sequence=sequence)
            elif choice.tokens:
                self.dump.generated(choice.tokens, sequence=sequence)


def token_ids(arguments: dict[str, Any]) -> Array:
    """The token ids of a call, [B, T]."""
    named = next((arguments[name] for name in TOKENS if arguments.get(name) is not None), None)
    if named is None:
        named = next((value for value in arguments.values() if is_ids(value)), None)
    if named is None:
        raise DumpError("the model was called without token ids, which a dump needs: give it input_ids")
    ids = integers(named)
    return ids if ids.ndim == 2 else ids.reshape(1, -1)


def mask_of(mask: Any, cached: int | None, shape: tuple[int, ...]) -> Array | None:
    """Which rows of a call, [B, T], are no padding, if its mask says it: [B, S], or what each row sees, [B, H, T, S].

    A row that is no padding sees itself. Static caches have masks of the second kind, of each kind of layer.
    """
    if isinstance(mask, dict):
        mask = next((one for one in mask.values() if getattr(one, "ndim", 0) == 4), None)
    if getattr(mask, "ndim", 0) not in (2, 4):
        return None
    entries, length = shape
    first = mask.shape[-1] - length  # or less, where a cache has room for more
    first = first if cached is None else min(cached, first)
    if mask.ndim == 2:
        return np.asarray(integers(mask)[:, first : first + length] != 0)
    own = mask[:, 0].diagonal(first, -2, -1)[:, :length]
    seen = integers(own == 0 if own.is_floating_point() else own != 0) != 0  # numbers are added to scores
    return np.broadcast_to(seen, (entries, length))


def packed_at(tokens: Array, position: Any) -> list[int]:
    """Where sequences begin that lie one behind the other in one entry: positions start anew there."""
    if position is None or len(tokens) > 1:
        return []
    given = integers(position).reshape(-1)
    firsts: list[int] = np.flatnonzero(given == 0).tolist()
    return firsts if given.size == tokens.size and given[0] == 0 else []


def is_ids(value: Any) -> bool:
    """Whether something may be token ids: a tensor of whole numbers with one or two axes."""
    return hasattr(value, "is_floating_point") and not value.is_floating_point() and value.ndim in (1, 2)


def cache_length(cache: Any) -> int:
    """How many rows of each entry a cache has been given."""
    if cache is None:
        return 0
    if hasattr(cache, "get_seq_length"):
        return int(cache.get_seq_length())
    return int(cache[0][0].shape[-2]) if isinstance(cache, (tuple, list)) and cache else 0


def padding_of(model: Any) -> set[int]:
    """The tokens with which a sequence that has ended may go on while others of its batch do not."""
    found: set[int] = set()
    for told in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        for name in ("pad_token_id", "eos_token_id"):
            ids = getattr(told, name, None)
            found.update(ids if isinstance(ids, (list, tuple)) else [] if ids is None else [ids])
    return found
