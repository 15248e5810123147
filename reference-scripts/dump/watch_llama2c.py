"""Run inside gdb by dump_llama2c.py: watches a llama2.c program and writes what its forward pass gives.

For each call of `forward`: token and position as two int32, then the logits. At the end of each: the KV cache of every
layer, keys then values, all positions so far. All f32 as they lie in memory.
"""

import os
import struct

import gdb

OUT = open(os.environ["XCHECK_WATCH_OUT"], "wb")


def memory(address: int, floats: int) -> bytes:
    return gdb.selected_inferior().read_memory(address, 4 * floats).tobytes()


class Forward(gdb.Breakpoint):
    """The start of a forward pass. The first three arguments of a C function on x86-64 are in these registers."""

    def stop(self) -> bool:
        self.transformer, self.token, self.position = (
            int(gdb.parse_and_eval(f"(long){register}")) for register in ("$rdi", "$esi", "$edx")
        )
        Returned(self)
        return False


class Returned(gdb.FinishBreakpoint):
    """Its end."""

    def __init__(self, call: Forward) -> None:
        super().__init__(internal=True)
        self.call = call

    def stop(self) -> bool:
        call = self.call
        model = gdb.parse_and_eval(f"*(Transformer *){call.transformer}")
        config, state = model["config"], model["state"]
        dim, layers, heads, kv_heads, vocabulary, context = (
            int(config[name]) for name in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
        )
        kv_dim = dim * kv_heads // heads
        OUT.write(struct.pack("<ii", call.token, call.position))
        OUT.write(memory(int(state["logits"]), vocabulary))
        for layer in range(layers):
            for cache in ("key_cache", "value_cache"):
                start = int(state[cache]) + 4 * layer * context * kv_dim
                OUT.write(memory(start, (call.position + 1) * kv_dim))
        return False


gdb.execute("set pagination off")
gdb.execute("set confirm off")
Forward("*forward", internal=True)
gdb.execute("run")
OUT.close()
