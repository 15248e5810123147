"""Writes the activations of an LLM inference engine as a dump that xcheck judges.

with xcheck.Dump("out.safetensors", producer="my-engine", architecture="llama", tokens=ids) as dump:
    with dump.forward(ids):
        dump.tap("attn_norm", x, layer=0)
"""

from .dump import Dump
from .errors import DumpError, DumpWarning
from .guess import guess_map
from .hook import hook
from .taps import TAPS

__all__ = ["TAPS", "Dump", "DumpError", "DumpWarning", "guess_map", "hook"]
__version__ = "0.1.0"
