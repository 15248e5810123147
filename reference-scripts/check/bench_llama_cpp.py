#!/usr/bin/env python3
"""Times llama.cpp on a GGUF file: benches/against_llama_cpp.sh runs it beside our own bench, which prints the same lines.

Each line is a name, the fastest wall-clock seconds, and the least processor seconds of all threads.

- prefill: one pass over a prompt (--tokens), with the logits of every position, as our engine always computes them
- prefill-last: the same with the logits of the last position only, which is all that llama.cpp's own tools ask for
- decode: one token in one pass, the mean of DECODE passes after the prompt

The KV cache is f16. llama-cpp-python is built by build_dump_llama_cpp.sh (GGML_NATIVE=OFF).
"""

import argparse
import ctypes
import time
from collections.abc import Callable

import llama_cpp as cpp

DECODE = 32
FLASH = {"off": cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, "auto": cpp.LLAMA_FLASH_ATTN_TYPE_AUTO}


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def new_context(model: cpp.llama_model_p, threads: int, flash: str, prefill: int) -> cpp.llama_context_p:
    params = cpp.llama_context_default_params()
    params.n_ctx = prefill + DECODE
    params.n_batch = params.n_ubatch = prefill
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = FLASH[flash]
    params.no_perf = True
    context = cpp.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp makes no context")
    return context


class Run:
    """A context and a batch that passes are read from."""

    def __init__(self, context: cpp.llama_context_p, prefill: int) -> None:
        self.context, self.prefill = context, prefill
        self.batch = cpp.llama_batch_init(prefill, 0, 1)

    def read(self, tokens: int, position: int, all_logits: bool) -> None:
        batch = self.batch
        batch.n_tokens = tokens
        for index in range(tokens):
            batch.token[index] = 1 + (position + index) * 37 % 1000
            batch.pos[index] = position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = all_logits or index == tokens - 1
        if cpp.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        cpp.llama_synchronize(self.context)

    def clear(self) -> None:
        cpp.llama_memory_clear(cpp.llama_get_memory(self.context), True)

    def decode(self) -> None:
        for index in range(DECODE):
            self.read(1, self.prefill + index, True)

    def times(self) -> dict[str, tuple[float, float]]:
        self.clear()
        last = timed(lambda: self.read(self.prefill, 0, False))
        self.clear()
        every = timed(lambda: self.read(self.prefill, 0, True))
        wall, processor = timed(self.decode)
        return {"prefill": every, "prefill-last": last, "decode": (wall / DECODE, processor / DECODE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash", choices=FLASH, default="off", help="flash attention; auto is llama.cpp's default")
    parser.add_argument("--tokens", type=int, default=64, help="of the prompt")
    parser.add_argument("--no-repack", action="store_true", help="weights as the file has them: no other layout in memory")
    parser.add_argument("--repetitions", type=int, default=2)
    args = parser.parse_args()

    silent = cpp.llama_log_callback(lambda level, text, data: None)
    cpp.llama_log_set(silent, ctypes.c_void_p(0))
    cpp.llama_backend_init()
    params = cpp.llama_model_default_params()
    params.use_extra_bufts = not args.no_repack
    model = cpp.llama_model_load_from_file(args.model.encode(), params)
    if not model:
        raise SystemExit(f"llama.cpp does not load {args.model}")
    run = Run(new_context(model, args.threads, args.flash, args.tokens), args.tokens)
    run.times()  # reads the file, and is not counted
    runs = [run.times() for _ in range(args.repetitions)]
    for name in runs[0]:
        wall, processor = (min(times[name][index] for times in runs) for index in (0, 1))
        print(f"{name} {wall:.5f} {processor:.5f}")


if __name__ == "__main__":
    main()
