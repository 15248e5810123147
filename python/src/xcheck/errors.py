"""What goes wrong while a dump is written: the message says what to write instead."""

from __future__ import annotations


class DumpError(ValueError):
    """What was given cannot be part of a dump, or contradicts what was given before."""


class DumpWarning(UserWarning):
    """What was given can be written, but is hardly what was meant."""
