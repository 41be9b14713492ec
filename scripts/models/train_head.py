"""Train an EAGLE-3 head for a model of the architecture llama, and write it as a GGUF file.

The target writes the texts itself: it begins with its start token, or it writes a question behind the opening of a user's turn and answers
it. A second run over the texts keeps the inputs of three layers and the likeliest next tokens, and the head learns to predict these. As in
the EAGLE-3 paper (arXiv 2503.01840) the head is also trained on its own rows, some steps ahead, as it is used in a draft.

    python -m pip install torch==2.15.0 gguf==0.19.0        # beside gguf-spec
    python scripts/models/train_head.py MODEL OUT.gguf --work FOLDER --text-minutes 10 --minutes 20

The same command continues from the files in FOLDER; `--text-minutes 0` writes no more texts, and `--minutes 0` only writes the file. MODEL is
a name or a path as for `gguf-spec -m`.
"""

import argparse
import math
import time
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from _head_data import Samples, known_tokens, load_texts, write_states, write_texts
from torch import nn

from gguf_spec import models

STEP_WEIGHT = 0.8  # weight of a step of a draft in training against the one before
RATE = 2e-3


class Weights:
    """Tensors and numbers of the target's file."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        self.of = {one.name: one for one in self.reader.tensors}

    def number(self, key: str, default=None):
        field = self.reader.get_field(f"llama.{key}")
        return default if field is None else field.contents()

    def __getitem__(self, name: str) -> torch.Tensor:
        one = self.of.get(name) or self.of["token_embd.weight"]  # a tied output
        return torch.from_numpy(
            gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float32)
        )


class Head(nn.Module):
    """One layer over pairs of a token and a row, as llama.cpp's graph of `eagle3` computes it."""

    def __init__(self, target: Weights, known: np.ndarray, n_ff: int) -> None:
        super().__init__()
        n_embd, self.n_head = (
            target.number("embedding_length"),
            target.number("attention.head_count"),
        )
        self.n_head_kv = target.number("attention.head_count_kv", self.n_head)
        self.width, self.eps = (
            n_embd // self.n_head,
            target.number("attention.layer_norm_rms_epsilon"),
        )
        self.base, self.n_ff = target.number("rope.freq_base", 10000.0), n_ff
        self.register_buffer("embedding", target["token_embd.weight"], persistent=False)

        def linear(n_in: int, n_out: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(n_out, n_in) * 0.5 / math.sqrt(n_in))

        self.fc = nn.Parameter(torch.cat([torch.zeros(n_embd, 2 * n_embd), torch.eye(n_embd)], 1))
        self.q, self.k, self.v = (
            linear(2 * n_embd, n * self.width)
            for n in (self.n_head, self.n_head_kv, self.n_head_kv)
        )
        self.o, self.gate, self.up, self.down = (
            linear(n_embd, n_embd),
            linear(n_embd, n_ff),
            linear(n_embd, n_ff),
            linear(n_ff, n_embd),
        )
        self.norms = nn.ParameterDict(
            {name: torch.ones(n_embd) for name in ("token", "row", "ffn", "out")}
        )
        self.norms["out"].data.copy_(target["output_norm.weight"])
        self.output = nn.Parameter(target["output.weight"][torch.from_numpy(known)])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.norms[name]

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        """Turn neighbouring pairs of values by the position."""
        n, half = x.shape[2], self.width // 2
        angle = torch.arange(n)[:, None] * self.base ** (-torch.arange(half) / half)
        cos, sin, a, b = angle.cos(), angle.sin(), x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, tokens: torch.Tensor, rows: torch.Tensor, n_steps: int) -> list[torch.Tensor]:
        """Return the logits of each step of drafts that begin at every position.

        Step s at position j has the row of step s - 1 at j - 1. It attends to the pairs of the text up to j - s, and to its own
        draft behind them. The first s positions of a step are not valid.
        """
        n_batch, n = tokens.shape
        row, embedded = rows @ self.fc.T, self.norm(self.embedding[tokens], "token")
        keys, values, results = [], [], []
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        for step in range(n_steps):
            x = torch.cat([embedded, self.norm(row, "row")], -1)
            q, k, v = (
                (x @ w.T).view(n_batch, n, -1, self.width).transpose(1, 2)
                for w in (self.q, self.k, self.v)
            )
            q, k = self.rope(q), self.rope(k)
            keys.append(k.repeat_interleave(self.n_head // self.n_head_kv, 1))
            values.append(v.repeat_interleave(self.n_head // self.n_head_kv, 1))
            scores = (q @ keys[0].transpose(-1, -2)).masked_fill(~mask.tril(-step), -1e9)
            # the draft's own pairs: step m of a draft at step s lies s - m positions back
            own = [
                (q * keys[m].roll(step - m, 2)).sum(-1, keepdim=True) for m in range(1, step + 1)
            ]
            shares = torch.softmax(torch.cat([scores, *own], -1) / math.sqrt(self.width), -1)
            seen = shares[..., :n] @ values[0]
            for m in range(1, step + 1):
                seen = seen + shares[..., n + m - 1, None] * values[m].roll(step - m, 2)
            x = row + seen.transpose(1, 2).reshape(n_batch, n, -1) @ self.o.T
            y = self.norm(x, "ffn")
            x = x + (F.silu(y @ self.gate.T) * (y @ self.up.T)) @ self.down.T
            results.append(self.norm(x, "out") @ self.output.T)
            row = x.roll(1, 1)
        return results


def losses(head: Head, batch: tuple[torch.Tensor, ...], known: torch.Tensor, n_steps: int):
    """Return the loss, and for each step how often the likeliest tokens agree."""
    tokens, rows, ids, shares, best = batch
    total, right = torch.zeros(()), []
    for step, logits in enumerate(head(tokens, rows, n_steps)):
        valid = (best[:, step:] >= 0).float()
        logprobs = torch.log_softmax(logits[:, step:], -1)
        each = -(shares[:, step:] * logprobs.gather(-1, ids[:, step:])).sum(-1)
        total = total + STEP_WEIGHT**step * (each * valid).sum() / valid.sum()
        hits = known[logprobs.argmax(-1)] == best[:, step:]
        right.append(((hits * valid).sum() / valid.sum()).item())
    return total, right


def train(
    head: Head, samples: Samples, known: np.ndarray, minutes: float, n_steps: int, path: Path
) -> None:
    """Train with a rate that follows the clock to zero."""
    best, start, end = torch.from_numpy(known), time.monotonic(), time.monotonic() + 60 * minutes
    optimizer = torch.optim.AdamW(head.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.01)
    step = 0
    while time.monotonic() < end:
        done = (time.monotonic() - start) / (end - start)
        for group in optimizer.param_groups:
            group["lr"] = (
                RATE * min(1, (step + 1) / 100) * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)
            )
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = losses(head, samples.batch(), best, n_steps)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0:
            print(
                f"{step} steps, {done:.0%}: loss {loss.item():.3f}, "
                f"agreement held out {agreement(head, samples, best, n_steps)}",
                flush=True,
            )
    torch.save(head.state_dict(), path)


@torch.no_grad()
def agreement(head: Head, samples: Samples, known: torch.Tensor, n_steps: int) -> list[float]:
    places = [(i, 0) for i in samples.held_out[:32]]
    return [round(one, 3) for one in losses(head, samples.windows(places), known, n_steps)[1]]


def write_gguf(
    head: Head, target: Weights, known: np.ndarray, layers: tuple[int, ...], kind: str, path: Path
) -> None:
    """Write the file; matrices in `kind`."""
    writer, n_embd = gguf.GGUFWriter(path, "eagle3"), head.fc.shape[0]
    for field in target.reader.fields.values():
        if field.name.startswith("tokenizer.") and field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        elif field.name.startswith("tokenizer."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    writer.add_context_length(target.number("context_length"))
    writer.add_embedding_length(n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(head.n_ff)
    writer.add_head_count(head.n_head)
    writer.add_head_count_kv(head.n_head_kv)
    writer.add_key_length(head.width)
    writer.add_value_length(head.width)
    writer.add_rope_dimension_count(head.width)
    writer.add_rope_freq_base(head.base)
    writer.add_layer_norm_rms_eps(head.eps)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", n_embd)
    matrices = {
        "fc": head.fc, "blk.0.attn_q": head.q, "blk.0.attn_k": head.k, "blk.0.attn_v": head.v, "blk.0.attn_output": head.o,
        "blk.0.ffn_gate": head.gate, "blk.0.ffn_up": head.up, "blk.0.ffn_down": head.down, "output": head.output,
    }  # fmt: skip
    norms = {
        "blk.0.attn_norm": "token",
        "blk.0.attn_norm_2": "row",
        "blk.0.ffn_norm": "ffn",
        "output_norm": "out",
    }
    quantization = gguf.GGMLQuantizationType[kind]
    for name, weights in matrices.items():
        writer.add_tensor(
            f"{name}.weight",
            gguf.quants.quantize(weights.detach().numpy(), quantization),
            raw_dtype=quantization,
        )
    for name, own in norms.items():
        writer.add_tensor(f"{name}.weight", head.norms[own].detach().numpy())
    if len(known) < len(head.embedding):
        writer.add_tensor("d2t", known.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="the target")
    parser.add_argument("out", type=Path, help="the file of the head")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for texts, states and checkpoints"
    )
    parser.add_argument("--text-minutes", type=float, default=10, help="time for writing texts")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a text")
    parser.add_argument("--minutes", type=float, default=20, help="time for training")
    parser.add_argument("--draft-steps", type=int, default=4, help="steps ahead that are trained")
    parser.add_argument(
        "--layers",
        type=int,
        nargs=3,
        help="layers whose inputs the head reads; 2, the middle, and the third last without",
    )
    parser.add_argument(
        "--vocabulary",
        type=int,
        default=0,
        help="tokens that the head knows, the most frequent ones; 0 for all",
    )
    parser.add_argument(
        "--n-ff",
        type=int,
        help="length of the hidden row of the feed-forward part; the target's without",
    )
    parser.add_argument(
        "--type", default="Q8_0", choices=["F16", "Q8_0", "Q4_0"], help="type of the matrices"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    texts_file = args.work / "texts.npz"
    if args.text_minutes:
        write_texts(args.model, texts_file, args.text_minutes, args.tokens)
    texts = load_texts(texts_file)
    target = Weights(models.path(args.model))
    n_layer = target.number("block_count")
    layers = tuple(args.layers or (2, n_layer // 2, n_layer - 3))
    write_states(args.model, texts, layers, args.work / "states")
    known = known_tokens(texts, len(target["token_embd.weight"]), args.vocabulary)
    torch.manual_seed(1)
    head = Head(target, known, args.n_ff or target.number("feed_forward_length"))
    checkpoint = args.work / "head.pt"
    if checkpoint.exists():
        head.load_state_dict(torch.load(checkpoint))
    if args.minutes:
        samples = Samples(texts, args.work / "states", known)
        train(head, samples, known, args.minutes, args.draft_steps, checkpoint)
    write_gguf(head, target, known, layers, args.type, args.out)


if __name__ == "__main__":
    main()
