"""Records what an LLM inference engine computes, and judges it with the xcheck program.

report = xcheck.check("path/to/model", "out.safetensors")
report.raise_for_verdict()

with xcheck.Dump("out.safetensors", producer="my-engine", architecture="llama", tokens=ids) as dump:
    with dump.forward(ids):
        dump.tap("attn_norm", x, layer=0)
"""

from .checked import Checked, checked
from .dump import Dump
from .errors import DumpError, DumpWarning, UsageError, VerdictError
from .gap import GapReport, gap
from .guess import guess_map
from .hook import hook
from .judge import check, compare, identify, probe, run
from .report import Cause, Report
from .taps import TAPS
from .testing import assert_faithful

__all__ = [
    "TAPS",
    "Cause",
    "Checked",
    "Dump",
    "DumpError",
    "DumpWarning",
    "GapReport",
    "Report",
    "UsageError",
    "VerdictError",
    "assert_faithful",
    "check",
    "checked",
    "compare",
    "gap",
    "guess_map",
    "hook",
    "identify",
    "probe",
    "run",
]
__version__ = "0.2.0"
