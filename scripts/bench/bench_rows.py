"""Time passes over 1 to 16 rows: the own kernels and those of llama.cpp in turn, in one process, on the same weights.

    .venv/bin/python scripts/bench/bench_rows.py MODEL.gguf
    .venv/bin/python scripts/bench/bench_rows.py MODEL.gguf --behind 1000,4000 --widths 1,8 --rounds 5
    .venv/bin/python scripts/bench/bench_rows.py MODEL.gguf --kernels avx2    # an instruction set of the own kernels
    .venv/bin/python scripts/bench/bench_rows.py MODEL.gguf --kernels stock   # llama.cpp's alone, with AMX if it has that

Prints medians in milliseconds, V(n) / V(1), and how often as fast as llama.cpp each width is. With `--behind`, also the seconds to read the
tokens. llama.cpp reads and decodes with flash attention off and on; the faster one counts. Beside the own kernels it has no AMX, because
weights are then kept in a form that only AMX reads. Nothing else should run on the machine.
"""

import argparse
import statistics
import time

import llama_cpp as lib
import numpy as np

from gguf_spec.llama import own_kernels

OWN, STOCK_OFF, STOCK_ON = "own", "stock, flash attention off", "stock, flash attention on"


class Context:
    """A context whose cache holds the first tokens of one random text."""

    def __init__(self, model, kind: str, n_ctx: int, threads: int, n_vocab: int, switch):
        options = lib.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = n_ctx, 2048, 512
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = 0 if kind == STOCK_OFF else 1
        self.kind, self.n_past, self._switch = kind, 0, switch
        self._context = lib.llama_init_from_model(model, options)
        self._text = np.random.default_rng(0).integers(3, n_vocab, n_ctx)

    def run(self, n: int, keep: bool = False) -> float:
        """Return the seconds of a pass over the next n tokens, with the logits of all rows unless they are kept in the cache."""
        batch = lib.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for i in range(n):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = (
                self._text[self.n_past + i],
                self.n_past + i,
                1,
            )
            batch.seq_id[i][0], batch.logits[i] = 0, not keep or i == n - 1
        self._switch(3 if self.kind == OWN else 0)
        start = time.perf_counter()
        failed = lib.llama_decode(self._context, batch)
        lib.llama_synchronize(self._context)
        seconds = time.perf_counter() - start
        lib.llama_batch_free(batch)
        if failed:
            raise SystemExit(f"Error: llama_decode returned {failed}.")
        if keep:
            self.n_past += n
        else:
            lib.llama_memory_seq_rm(lib.llama_get_memory(self._context), 0, self.n_past, -1)
        return seconds

    def read(self, goal: int) -> float:
        """Read until `goal` tokens are cached, 512 at a time, and return the seconds."""
        return sum(self.run(min(512, goal - at), keep=True) for at in range(self.n_past, goal, 512))


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--widths", type=numbers, default=[1, 2, 4, 8, 16], help="rows of a pass")
    parser.add_argument("--behind", type=numbers, default=[0], help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--kernels", default="auto", help="instruction set of the own kernels, or stock"
    )
    args = parser.parse_args()
    lib.llama_backend_init()
    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, None)
    found = own_kernels.start(args.kernels)
    if not found.name and args.kernels != "stock":
        raise SystemExit(f"Error: the own kernels are not in use: {found.reason}.")
    params = lib.llama_model_default_params()
    if found.name:  # as `load` does where there is room
        params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    model = lib.llama_model_load_from_file(args.model.encode(), params)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    n_ctx = max(args.behind) + max(args.widths) + 64
    kinds = [OWN, STOCK_OFF, STOCK_ON] if found.name else [STOCK_OFF, STOCK_ON]
    switch = own_kernels.library().gguf_spec_kernels_switch if found.name else lambda _: 0
    contexts = [Context(model, kind, n_ctx, args.threads, n_vocab, switch) for kind in kinds]
    print(
        f"{args.model.rsplit('/', 1)[-1]}, kernels {found.name or 'stock'}, {args.threads} threads, {args.rounds} rounds"
    )
    for depth in args.behind:
        reading = {context.kind: context.read(depth) for context in contexts}
        times = {(c.kind, n): [] for c in contexts for n in args.widths}
        for i in range(args.rounds + 1):
            for n in args.widths:
                for context in contexts:
                    seconds = context.run(n)
                    if i:  # the first round warms up
                        times[context.kind, n].append(1000 * seconds)
        print(f"behind {depth}".ljust(28), *(f"{n:>7}" for n in args.widths), "   V(n) / V(1)")
        middle = {key: statistics.median(values) for key, values in times.items()}
        for context in contexts:
            row = [middle[context.kind, n] for n in args.widths]
            ratios = " ".join(f"{x / row[0]:5.2f}" for x in row)
            read = f"   {reading[context.kind]:.1f} s to read" if depth else ""
            print(
                context.kind.ljust(28),
                *(f"{x:7.1f}" for x in row),
                f"   {ratios}{read}",
                flush=True,
            )
        if not found.name:
            continue
        best = [min(middle[kind, n] for kind in (STOCK_OFF, STOCK_ON)) for n in args.widths]
        ratios = [x / middle[OWN, n] for x, n in zip(best, args.widths, strict=True)]
        read = (
            f"   {min(reading[STOCK_OFF], reading[STOCK_ON]) / reading[OWN]:.2f}" if depth else ""
        )
        print("over llama.cpp's best".ljust(28), *(f"{x:7.2f}" for x in ratios), read, flush=True)


if __name__ == "__main__":
    main()
