"""Train a small target and a smaller draft from a folder of text and write them as GGUF files.

The draft is trained first; the target is grown from it and trained on. A small model learns most of what can be learned from few tokens
for a fraction of the time, and a target grown from its draft agrees with it more often.

    python -m venv trainer && trainer/bin/pip install torch==2.13.0 tokenizers==0.23.3 gguf==0.19.0 numpy
    trainer/bin/python scripts/models/train_pair.py TEXTS OUT --minutes 75 --draft-minutes 20 --seed 1

TEXTS is a folder of `*.txt` files in UTF-8, one book a file, paragraphs apart by an empty line. Stop it at any moment and give the
same command again: it continues from the last checkpoint in OUT/work. `--export` writes the GGUF files of the checkpoints that are there
and trains no further. With `--minutes` the learning rate follows the clock, so two machines train two models; with `--steps` and
`--draft-steps` the order of the data and the schedule are fixed by the seed.
"""

import argparse
import json
import math
import os
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END, TURN, TURN_END = range(3)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTEXT = 2048  # positions the GGUF promises; the last 15 % of training runs at this length, what comes before at half of it
HELD_OUT_EVERY, BLOCK_CHARS = 50, 8000  # one block in fifty is kept out of training


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama-architecture model; heads are 64 wide."""

    n_vocab: int
    n_embd: int
    n_layer: int
    n_ff: int
    tied: bool

    @property
    def n_head(self) -> int:
        return self.n_embd // 64


SHAPES = {
    "target": Shape(n_vocab=4096, n_embd=256, n_layer=8, n_ff=704, tied=False),
    "draft": Shape(n_vocab=4096, n_embd=128, n_layer=4, n_ff=384, tied=True),
}


# ---- text -> documents ---------------------------------------------------------------------------------------------------------


def split_books(folder: Path) -> tuple[list[list[str]], list[str]]:
    """Return the training books as lists of paragraphs, and the held-out blocks as texts."""
    books, held_out = [], []
    for path in sorted(folder.rglob("*.txt")):
        paragraphs = [
            p.strip() for p in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")) if p.strip()
        ]
        blocks, size = [[]], 0
        for paragraph in paragraphs:
            if size > BLOCK_CHARS:
                blocks.append([])
                size = 0
            blocks[-1].append(paragraph)
            size += len(paragraph)
        for i, block in enumerate(blocks):
            if (i + len(books)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1:
                held_out.append("\n\n".join(block))
            elif i and (i - 1 + len(books)) % HELD_OUT_EVERY != HELD_OUT_EVERY - 1:
                books[-1].extend(block)  # no gap before this block: the story goes on
            else:
                books.append(block)
    return books, held_out


NOUN = re.compile(
    r"\b(?:the|a|an|his|her|little|old)\s+([a-z]{3,})(?=[,.;!?]|\s+(?:was|had|and|of|in|to|said|who|that|is|with|on|at|came|went)\b)"
)
ASK = [
    "Tell me a story about {x} and {y}.",
    "tell me a story about {x} and {y}",
    "Tell me a tale of {x} and {y}.",
    "Please tell me about {x} and {y}!",
    "Can you tell a story with {x} and {y} in it?",
    "Tell me a story about {x}.",
]
GO_ON = ["Go on.", "What happened then?", "And then?", "Tell me more.", "go on"]
SYSTEMS = ["You are a teller of tales.", "You tell stories to children."]


def chat_documents(
    books: list[list[str]], share: float, rng: random.Random
) -> list[list[tuple[str, str]]]:
    """Make chats from the passages themselves: the request names two nouns that the passage speaks of most and others seldom."""
    seen_in = Counter(noun for book in books for p in book for noun in set(NOUN.findall(p)))
    chats = []
    for book in books:
        at = 0
        while at < len(book):
            turns = [[], []]
            for passage in turns:
                goal = rng.randint(400, 1500)
                while at < len(book) and sum(map(len, passage)) < goal:
                    passage.append(book[at])
                    at += 1
            if rng.random() > share or not turns[0]:
                continue
            nouns = Counter(w for w in NOUN.findall(" ".join(turns[0])) if seen_in[w] > 5)
            best = sorted(nouns, key=lambda w: (-nouns[w] / math.log(3 + seen_in[w]), w))[:2]
            if len(best) < 2 or len(" ".join(turns[0])) > 4000:
                continue
            x, y = (
                f"the {w}"
                if w.endswith("s") or rng.random() < 0.3
                else f"{'an' if w[0] in 'aeiou' else 'a'} {w}"
                for w in best
            )
            chat = [
                ("user", rng.choice(ASK).format(x=x, y=y)),
                ("assistant", "\n\n".join(turns[0])),
            ]
            if turns[1] and rng.random() < 0.4:
                chat += [("user", rng.choice(GO_ON)), ("assistant", "\n\n".join(turns[1]))]
            if rng.random() < 0.3:
                chat.insert(0, ("system", rng.choice(SYSTEMS)))
            chats.append(chat)
    return chats


def train_tokenizer(books: list[list[str]], n_vocab: int) -> Tokenizer:
    """Train a byte-level BPE whose splitting rule is GPT-2's, the one llama.cpp calls `gpt-2`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n\n".join(book) for book in books), trainer)
    return tokenizer


def prepare(texts: Path, work: Path, seed: int, n_vocab: int) -> None:
    """Write `tokenizer.json`, `train.npy`, `held_out.npy` (uint16 token ids) and `held_out.json` into `work`, once."""
    if (work / "train.npy").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    books, held_out = split_books(texts)
    if not books:
        raise SystemExit(f"Error: no *.txt under {texts}.")
    tokenizer = train_tokenizer(books, n_vocab)
    tokenizer.save(str(work / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    documents = []
    for book in books:  # chapters, so that shuffling keeps a story together
        chapter: list[str] = []
        for paragraph in [*book, None]:
            if paragraph is None or (
                sum(map(len, chapter)) > 6000
                and re.match(
                    r"(chapter|book|part)\b|[IVXL]+\.?$|[A-Z' ,]{6,60}$",
                    paragraph,
                    re.I if len(paragraph) < 12 else 0,
                )
            ):
                documents.append([*ids("\n\n".join(chapter)), END])
                chapter = []
            chapter.append(paragraph)
    for chat in chat_documents(books, 0.2, rng):
        document = []
        for role, content in chat:
            document += [TURN, *ids(f"{role}\n{content}"), TURN_END, *ids("\n")]
        documents.append([*document, END])
    rng.shuffle(documents)
    np.save(
        work / "held_out.npy",
        np.array([t for text in held_out for t in [*ids(text), END]], dtype=np.uint16),
    )
    (work / "held_out.json").write_text(json.dumps(held_out, ensure_ascii=False))
    np.save(work / "train.npy", np.concatenate([np.array(d, dtype=np.uint16) for d in documents]))


# ---- the model, the same computation as llama.cpp's `llama` architecture ---------------------------------------------------------


class Block(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        n, f = shape.n_embd, shape.n_ff
        self.n_head = shape.n_head
        self.attn_norm, self.ffn_norm = nn.Parameter(torch.ones(n)), nn.Parameter(torch.ones(n))
        self.qkv, self.attn_output = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
        self.gate_up, self.ffn_down = nn.Linear(n, 2 * f, bias=False), nn.Linear(f, n, bias=False)

    def forward(self, x, cos, sin):
        b, t, n = x.shape
        q, k, v = (
            self.qkv(F.rms_norm(x, (n,), self.attn_norm, 1e-5))
            .view(b, t, 3, self.n_head, 64)
            .permute(2, 0, 3, 1, 4)
        )
        x = x + self.attn_output(
            F.scaled_dot_product_attention(
                rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
            )
            .transpose(1, 2)
            .reshape(b, t, n)
        )
        gate, up = self.gate_up(F.rms_norm(x, (n,), self.ffn_norm, 1e-5)).chunk(2, -1)
        return x + self.ffn_down(F.silu(gate) * up)


def rotate(x, cos, sin):
    """Rotate neighbouring pairs (llama.cpp's `llama` arch interleaves, `x` is `(B, heads, T, 64)`)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Model(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.n_vocab, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.output_norm = nn.Parameter(torch.ones(shape.n_embd))
        self.output = None if shape.tied else nn.Linear(shape.n_embd, shape.n_vocab, bias=False)
        angles = torch.arange(CONTEXT)[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.zeros_(p) if last else nn.init.normal_(
                    p, std=0.02 if "embedding" in name or "output" in name else p.shape[1] ** -0.5
                )

    def forward(self, ids, labels):
        x = self.embedding(ids)
        t = ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:t], self.sin[:t])
        x = F.rms_norm(x, x.shape[-1:], self.output_norm, 1e-5)
        head = self.embedding.weight if self.output is None else self.output.weight
        return F.cross_entropy(F.linear(x, head).flatten(0, 1), labels.flatten())


@torch.no_grad()
def grow(small: Model, shape: Shape) -> Model:
    """Return a larger model that computes what `small` does: its start is free, and every token trains it further.

    Old blocks get new channels, heads and units that write nothing yet, with identity blocks between them (Chen et al. 2015, Net2Net).
    """
    large, n, f = Model(shape), small.shape.n_embd, small.shape.n_ff
    spread = (n / shape.n_embd) ** 0.5  # empty channels make the root mean square smaller
    every = shape.n_layer // small.shape.n_layer
    for i, old in enumerate(small.blocks):
        new = large.blocks[i * every]
        for part, rows, groups in (("qkv", n, 3), ("gate_up", f, 2)):
            weight, source = getattr(new, part).weight, getattr(old, part).weight
            view = weight.view(groups, -1, shape.n_embd)
            view[:, :rows, :n], view[:, :rows, n:] = source.view(groups, rows, n), 0
        new.attn_output.weight[:n, :n] = old.attn_output.weight
        new.ffn_down.weight[:n, :f] = old.ffn_down.weight
        for norm in ("attn_norm", "ffn_norm"):
            getattr(new, norm).fill_(spread)[:n] = getattr(old, norm) * spread
    large.output_norm.fill_(spread)[:n] = small.output_norm * spread
    for target in (large.embedding.weight, large.output.weight):
        target.zero_()[:, :n] = small.embedding.weight
    return large


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by five Newton-Schulz steps (Jordan et al. 2024), for the hidden matrices."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                m.lerp_(p.grad, 0.05)
                x = p.grad.lerp(m, 0.95)
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    s = x @ x.T
                    x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
                x = x.T if tall else x
                p.mul_(1 - group["lr"] * 0.1).add_(
                    x, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5
                )


# ---- training ------------------------------------------------------------------------------------------------------------------


def batches(data: np.ndarray, seed: int, n_tokens_seen: int, length: int, n_batch: int):
    """Return the batch that comes after `n_tokens_seen` tokens: windows in a fresh order and at a fresh offset each epoch."""
    n_windows = (len(data) - length - 1) // length
    first = n_tokens_seen // length
    rows = []
    for i in range(first, first + n_batch):
        rng = np.random.default_rng([seed, length, i // n_windows])
        offset, order = rng.integers(length), rng.permutation(n_windows)
        start = offset + int(order[i % n_windows]) * length
        rows.append(data[start : start + length + 1])
    block = torch.from_numpy(np.stack(rows).astype(np.int64))
    return block[:, :-1].contiguous(), block[:, 1:].contiguous()


@torch.no_grad()
def held_out_loss(model, data: np.ndarray, length: int = 1024, n_windows: int = 24) -> float:
    """Return the mean loss, in nats a token, over the first windows of the held-out text."""
    losses = []
    for i in range(min(n_windows, (len(data) - 1) // length)):
        block = torch.from_numpy(data[i * length : i * length + length + 1].astype(np.int64))[None]
        losses.append(model(block[:, :-1], block[:, 1:]).item())
    return float(np.mean(losses))


def train(
    name: str,
    work: Path,
    minutes: float | None,
    steps: int | None,
    seed: int,
    save_s: float,
    compile_: bool,
) -> None:
    """Train one model until its budget is spent; the checkpoint has the spent part."""
    data, held_out = np.load(work / "train.npy"), np.load(work / "held_out.npy")
    torch.manual_seed(seed)
    model = Model(SHAPES[name])
    grown = name == "target"
    if grown:
        draft = Model(SHAPES["draft"])
        draft.load_state_dict(torch.load(work / "draft.pt", weights_only=True)["model"])
        model = grow(draft, SHAPES[name])
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blocks")]
    others = [p for p in model.parameters() if not any(p is h for h in hidden)]
    optimizers = [
        Muon(hidden, 0.02),
        torch.optim.AdamW(others, 0.004, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    state = {"step": 0, "seconds": 0.0, "tokens": 0, "log": []}
    path = work / f"{name}.pt"
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        for o, s in zip(optimizers, saved["optimizers"], strict=True):
            o.load_state_dict(s)
        state = saved["state"]
    run = torch.compile(model, dynamic=False) if compile_ else model

    def save() -> None:
        part = path.with_suffix(".part")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
                "state": state,
            },
            part,
        )
        part.replace(path)

    losses, saved_at = [], time.monotonic()
    while (done := state["step"] / steps if steps else state["seconds"] / (60 * minutes)) < 1:
        start = time.monotonic()
        tokens_at_once = 2048 if grown else 6144
        length = CONTEXT if done > 0.85 else CONTEXT // 2
        n_batch = tokens_at_once // length
        # A grown target starts where its draft ended, at the end of a falling rate: the full rate would undo it.
        rate = min(1, (state["step"] + 1) / 30) * (
            0.2 * max(0.02, 1 - done) if grown else min(1, max(0.02, (1 - done) / 0.6))
        )
        for optimizer, base in zip(optimizers, (0.02, 0.004), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate
        loss = run(*batches(data, seed, state["tokens"], length, n_batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        state["step"] += 1
        state["tokens"] += length * n_batch
        state["seconds"] += min(time.monotonic() - start, 120)
        if time.monotonic() - saved_at > save_s:
            state["log"].append(
                {
                    **{k: state[k] for k in ("step", "seconds", "tokens")},
                    "train": float(np.mean(losses)),
                    "held_out": held_out_loss(model, held_out),
                }
            )
            print(
                name,
                json.dumps(state["log"][-1]),
                f"{length * n_batch / (time.monotonic() - start):.0f} tok/s",
                flush=True,
            )
            losses, saved_at = [], time.monotonic()
            save()
    if state["step"] and not (state["log"] and state["log"][-1].get("last")):
        state["log"].append(
            {
                **{k: state[k] for k in ("step", "seconds", "tokens")},
                "held_out": held_out_loss(model, held_out, n_windows=10**6),
                "last": True,
            }
        )
        print(name, json.dumps(state["log"][-1]), flush=True)
        save()


# ---- GGUF ----------------------------------------------------------------------------------------------------------------------


def tensors(model: Model):
    """Yield `(GGUF name, matrix or vector)` of a model."""
    yield "token_embd.weight", model.embedding.weight
    for i, block in enumerate(model.blocks):
        q, k, v = block.qkv.weight.chunk(3)
        gate, up = block.gate_up.weight.chunk(2)
        parts = {
            "attn_norm": block.attn_norm,
            "attn_q": q,
            "attn_k": k,
            "attn_v": v,
            "attn_output": block.attn_output.weight,
        }
        parts |= {
            "ffn_norm": block.ffn_norm,
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": block.ffn_down.weight,
        }
        for part, value in parts.items():
            yield f"blk.{i}.{part}.weight", value
    yield "output_norm.weight", model.output_norm
    if model.output is not None:
        yield "output.weight", model.output.weight


def export(
    name: str,
    work: Path,
    out: Path,
    quant: gguf.GGMLQuantizationType,
    file_type: gguf.LlamaFileType,
    license_: str,
) -> Path:
    """Write a checkpoint as GGUF. Norms stay F32; a 4-bit model keeps its tied embedding at 8 bits, for it is the output matrix too."""
    saved = torch.load(work / f"{name}.pt", weights_only=True)
    shape = SHAPES[name]
    model = Model(shape)
    model.load_state_dict(saved["model"])
    tokenizer = json.loads((work / "tokenizer.json").read_text())["model"]
    vocab = sorted(tokenizer["vocab"], key=tokenizer["vocab"].__getitem__)
    path = out / f"tales-{name}-{quant.name}.gguf"
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), "llama")
    writer.add_name(f"tales {name}")
    writer.add_license(license_)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocab)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in vocab]
    )
    writer.add_token_merges(
        [" ".join(m) if isinstance(m, list) else m for m in tokenizer["merges"]]
    )
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(TURN_END)
    writer.add_eot_token_id(TURN_END)
    writer.add_pad_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for tensor_name, value in tensors(model):
        array = value.detach().numpy().astype(np.float32)
        if array.ndim == 1:
            writer.add_tensor(tensor_name, array)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0 if tensor_name == "token_embd.weight" else quant
            writer.add_tensor(tensor_name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)
    n = sum(p.numel() for p in model.parameters())
    print(
        f"{path.name}: {n:,} parameters, {path.stat().st_size:,} bytes, {json.dumps(saved['state']['log'][-1:])}"
    )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=75, help="for the target")
    parser.add_argument("--draft-minutes", type=float, default=20)
    parser.add_argument("--steps", type=int, help="for the target, instead of --minutes")
    parser.add_argument("--draft-steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-s", type=float, default=300, help="seconds between checkpoints")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    parser.add_argument(
        "--export",
        action="store_true",
        help="write the GGUF files of the checkpoints, train no further",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    work = args.out / "work"
    prepare(args.texts, work, args.seed, SHAPES["target"].n_vocab)
    if not args.export:
        train(
            "draft",
            work,
            args.draft_minutes,
            args.draft_steps,
            args.seed,
            args.save_s,
            not args.no_compile,
        )
        train("target", work, args.minutes, args.steps, args.seed, args.save_s, not args.no_compile)
    kinds, files = gguf.GGMLQuantizationType, gguf.LlamaFileType
    for name, quant, file_type in (
        ("target", kinds.Q8_0, files.MOSTLY_Q8_0),
        ("draft", kinds.Q4_0, files.MOSTLY_Q4_0),
    ):
        if (work / f"{name}.pt").exists():
            export(name, work, args.out, quant, file_type, "cc0-1.0")


if __name__ == "__main__":
    main()
