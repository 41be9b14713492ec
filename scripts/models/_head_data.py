"""Training data of scripts/models/train_head.py: texts that the target writes, its states over them, and samples of both."""

import random
import time
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch

import gguf_spec
from gguf_spec import Completion, Sampling, models
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import K_MAX

N_LIKELIEST = 16  # next tokens of the target that are kept for each position
WINDOW, BATCH = 128, 8  # tokens of a sample, samples of a step
TEMPERATURES = (0.0, 0.5, 0.8, 1.0)


def write_texts(model: str, path: Path, minutes: float, n_tokens: int) -> None:
    """Let the target write texts, several at a time."""
    end, texts = time.monotonic() + 60 * minutes, load_texts(path) if path.exists() else []
    with gguf_spec.load(model, None, parallel=8, n_ctx=2 * n_tokens + 64) as llm:
        rng = random.Random(len(texts))

        def write(prompts, n, temperature):
            ways = [
                Sampling(temperature=temperature(), max_tokens=n, seed=rng.getrandbits(31), top_k=0, top_p=1.0, min_p=0.02)
                for _ in prompts
            ]  # fmt: skip
            results = llm.generate_many(prompts, ways)
            return [
                (a, b) for a, b in zip(prompts, results, strict=True) if isinstance(b, Completion)
            ]

        while time.monotonic() < end:
            prompts = [[llm.vocabulary.start]] * 16
            if llm.has_chat_template:
                questions = write([opening(llm)] * 32, 40, lambda: 1.0)
                said = [one.text.strip() for _, one in questions]
                prompts += [llm.tokenize([{"role": "user", "content": one}]) for one in said if one]
            for prompt, one in write(prompts, n_tokens, lambda: rng.choice(TEMPERATURES)):
                if len(one.tokens) > 24:
                    texts.append(np.array([*prompt, *one.tokens], np.int32))
            np.savez(
                path, tokens=np.concatenate(texts), ends=np.cumsum([len(one) for one in texts])
            )
            print(f"{len(texts):,} texts, {sum(map(len, texts)):,} tokens", flush=True)


def opening(llm) -> list[int]:
    """Return the tokens of the chat template before the text of a user's turn."""
    a, b = (llm.tokenize([{"role": "user", "content": text}]) for text in ("A", "B"))
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def load_texts(path: Path) -> list[np.ndarray]:
    data = np.load(path)
    return np.split(data["tokens"], data["ends"][:-1])


def write_states(
    model: str, texts: list[np.ndarray], layers: tuple[int, ...], folder: Path
) -> None:
    """Keep for each token the inputs of the layers and the likeliest next tokens; what is there is not computed again."""
    folder.mkdir(exist_ok=True)
    options = ContextOptions(n_ctx=4096, head="file", head_layers=layers)
    target = None
    for first in range(0, len(texts), 64):
        path, block = folder / f"{first:06}.npz", texts[first : first + 64]
        if path.exists() and len(np.load(path)["ends"]) == len(block):
            continue
        target = target or Context(models.path(model), options).sequences[0]
        rows, ids, logits = [], [], []
        for text in block:
            target.rollback(0)
            for at in range(0, len(text), K_MAX):
                part = text[at : at + K_MAX].tolist()
                said = target.logits(part, len(part))
                best = np.argpartition(said, -N_LIKELIEST, axis=1)[:, -N_LIKELIEST:]
                kept = np.take_along_axis(said, best, 1) - np.log(
                    np.exp(said - said.max(1, keepdims=True)).sum(1, keepdims=True)
                )
                ids.append(best.astype(np.int32))
                logits.append((kept - said.max(1, keepdims=True)).astype(np.float16))
            rows.append(target.hidden.before(1, len(text)).astype(np.float16))
        np.savez(path, rows=np.concatenate(rows), ids=np.concatenate(ids), logprobs=np.concatenate(logits), ends=np.cumsum([len(one) for one in block]))  # fmt: skip
        print(f"states of {first + len(block):,} of {len(texts):,} texts", flush=True)
    if target:
        target.close()


def known_tokens(texts: list[np.ndarray], n_vocab: int, n: int) -> np.ndarray:
    """Return the ids of the tokens that occur most often in the texts, in order."""
    counts = np.bincount(np.concatenate(texts), minlength=n_vocab)
    return (
        np.sort(np.argsort(-counts, kind="stable")[:n]) if 0 < n < n_vocab else np.arange(n_vocab)
    )


class Samples:
    """Windows of texts with their states, in random order; the last texts are held out."""

    def __init__(self, texts: list[np.ndarray], folder: Path, known: np.ndarray) -> None:
        self.at = np.full(1 << 20, -1, np.int64)
        self.at[known] = np.arange(len(known))
        self.texts, self.rows, self.ids, self.logprobs = [], [], [], []
        for path in sorted(folder.glob("*.npz")):
            data = np.load(path)
            for name in ("rows", "ids", "logprobs"):
                getattr(self, name).extend(np.split(data[name], data["ends"][:-1]))
        self.texts = texts[: len(self.rows)]
        usable = [i for i, one in enumerate(self.texts) if len(one) > 24]
        self.held_out, self.used = (
            usable[: max(8, len(usable) // 50)],
            usable[max(8, len(usable) // 50) :],
        )
        self.rng = np.random.default_rng(1)

    def batch(self, n: int = BATCH) -> tuple[torch.Tensor, ...]:
        sizes = np.array([len(self.texts[i]) for i in self.used], np.float64)
        return self.windows(
            [
                (i, int(self.rng.integers(0, max(1, len(self.texts[i]) - WINDOW))))
                for i in self.rng.choice(self.used, n, p=sizes / sizes.sum())
            ]
        )

    def windows(self, places: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        """Return tokens x[i + 1], rows f[i], and the probabilities after x[i + 1]: ids among the known tokens, and their shares."""
        parts = []
        for i, start in places:
            end = min(start + WINDOW, len(self.texts[i]) - 1)
            n = WINDOW - (end - start)
            ids = self.at[self.ids[i][start + 1 : end + 1]]
            shares = np.exp(self.logprobs[i][start + 1 : end + 1].astype(np.float32)) * (ids >= 0)
            parts.append((
                np.pad(self.texts[i][start + 1 : end + 1], (0, n)), np.pad(self.rows[i][start:end], ((0, n), (0, 0))),
                np.pad(np.maximum(ids, 0), ((0, n), (0, 0))), np.pad(shares, ((0, n), (0, 0))),
                np.pad(self.ids[i][np.arange(start + 1, end + 1), self.logprobs[i][start + 1 : end + 1].argmax(1)], (0, n), constant_values=-1),
            ))  # fmt: skip
        kinds = (torch.long, torch.float32, torch.long, torch.float32, torch.long)
        return tuple(
            torch.from_numpy(np.stack(one)).to(kind)
            for one, kind in zip(zip(*parts, strict=True), kinds, strict=True)
        )
