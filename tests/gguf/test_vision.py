"""Images in prompts: the text is that of llama.cpp's own program, with any drafts and caches."""

from __future__ import annotations

import base64
import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import (
    ImageError,
    NotAModelError,
    NoVisionError,
    OptionConflictError,
    PromptTooLongError,
    TemplateError,
    UnsupportedModelError,
)
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import IMAGE_IDS
from gguf_spec.runtime.load import choose_projector
from tests.support import projector_file, tiny

pytestmark = pytest.mark.skipif(
    not projector_file.has_mtmd(), reason="this build of llama-cpp-python has no libmtmd"
)
GREEDY = Sampling(temperature=0, max_tokens=40, ignore_eos=True)
DRAWN = Sampling(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True)
# Repeats itself, also around the images, so that the drafts from the text are many.
TEXT = "the an the an<__media__>the an the an of the an<__media__>the an the an of the"
ONE, OTHER = projector_file.png(1), projector_file.png(2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    tiny.write(folder / "model.gguf", tiny.llama(n_layer=2))
    tiny.write(folder / "draft.gguf", tiny.llama(n_layer=2))
    tiny.write(folder / "mamba.gguf", tiny.mamba())
    projector_file.write(folder / "mmproj.gguf")
    tiny.write(folder / "qwen2vl.gguf", projector_file.qwen2vl_model())
    tiny.write(folder / "qwen2vl-draft.gguf", projector_file.qwen2vl_model(seed=1))
    projector_file.write(folder / "mmproj-qwen2vl.gguf", projector_file.qwen2vl())
    return folder


def load(files: Path, draft: Any = None, **options: Any) -> gguf_spec.LLM:
    given = {"mmproj": files / "mmproj.gguf", "threads": 1, "prefix_memory": 0} | options
    return gguf_spec.load(files / "model.gguf", draft, **given)


@pytest.fixture(scope="module")
def plain(files):
    with load(files) as llm:
        yield llm


@pytest.fixture
def fresh(plain):
    """The LLM without drafts, with empty caches."""
    plain.forget()
    return plain


def part(image: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def question(text: str, *images: bytes) -> dict[str, Any]:
    return {"role": "user", "content": [*map(part, images), {"type": "text", "text": text}]}


def of_llama_cpp(
    files: Path,
    before: str,
    image: bytes,
    after: str,
    n: int,
    model: str = "model",
    mmproj: str = "mmproj",
) -> list[int]:
    """Return the ids that llama.cpp's own functions give for a text with an image, greedily."""
    from llama_cpp import mtmd_cpp as M

    from gguf_spec.llama.bindings import C
    from gguf_spec.llama.context import Context
    from gguf_spec.llama.native import SequenceTokens
    from gguf_spec.llama.options import ContextOptions

    model = Context(files / f"{model}.gguf", ContextOptions(threads=1)).sequences[0]
    native = model.native
    params = M.mtmd_context_params_default()
    params.n_threads = 1
    projector = native.model(
        lambda one: M.mtmd_init_from_file(bytes(files / f"{mmproj}.gguf"), one, params)
    )
    data = (ctypes.c_uint8 * len(image)).from_buffer_copy(image)
    bitmap = M.mtmd_helper_bitmap_init_from_buf(projector, data, len(image), False)
    text = f"{before}<__media__>{after}".encode()
    chunks, past = M.mtmd_input_chunks_init(), C.llama_pos()
    asked = M.mtmd_input_text(text, len(text), True, True)
    assert M.mtmd_tokenize(projector, chunks, asked, (ctypes.c_void_p * 1)(bitmap), 1) == 0
    found = []
    with_context = native.context
    code = with_context(
        lambda c: M.mtmd_helper_eval_chunks(projector, c, chunks, 0, 0, 64, True, past)
    )
    assert code == 0
    row = native.context(C.llama_get_logits_ith, -1)
    for at in range(n):
        found.append(int(np.argmax(np.ctypeslib.as_array(row, (model.n_vocab,)))))
        native.batch.fill([SequenceTokens(0, past.value + at, found[-1:], 1)])
        assert native.decode() == 0
        row = native.context(C.llama_get_logits_ith, -1)
    M.mtmd_free(projector)
    model.close()
    return found


@pytest.mark.full
def test_the_text_is_that_of_llama_cpp(files, fresh):
    expected = of_llama_cpp(files, "the king and ", ONE, " in the end", 30)
    found = fresh.generate(
        "the king and <__media__> in the end",
        Sampling(temperature=0, max_tokens=30, ignore_eos=True),
        images=[ONE],
    )
    assert list(found.tokens) == expected
    assert found.stats.n_prompt == projector_file.N_TOKENS + len(
        fresh.tokenize("the king and ") + fresh.tokenize(" in the end")
    )


PENALISED = Sampling(
    temperature=0.8, seed=4, max_tokens=40, ignore_eos=True, dry_multiplier=0.8, dry_allowed_length=1,
    repeat_penalty=1.2, frequency_penalty=0.2, penalty_last_n=-1, dry_penalty_last_n=-1, logprobs=2,
)  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "sampling", [GREEDY, DRAWN, PENALISED], ids=["greedy", "drawn", "penalised"]
)
@pytest.mark.parametrize("draft", ["ngram", "draft.gguf"])
def test_drafts_do_not_change_the_text(files, fresh, draft, sampling):
    draft = files / draft if draft.endswith(".gguf") else draft
    speculation = Speculation(4, adaptive=False)
    with load(files, draft, speculation=speculation) as llm:
        for images in ([ONE, OTHER], [OTHER, ONE], [ONE, ONE]):
            found = llm.generate(TEXT, sampling, images=images)
            assert found.tokens == fresh.generate(TEXT, sampling, images=images).tokens
            assert found.stats.n_drafted > 0


def test_a_draft_model_reads_the_texts_only(files):
    """Its twin drafts a text behind an image as if there were none, in the positions of the text."""
    with load(files, files / "draft.gguf", speculation=Speculation(4, adaptive=False)) as llm:
        llm.generate(TEXT, GREEDY, images=[ONE, OTHER])
        with llm.models() as (target, draft):
            assert target.n_past == target.position(target.n_past) >= draft.n_past > 80
            assert draft.position(draft.n_past) == draft.n_past - 2 * projector_file.N_TOKENS
            ids = llm.tokenize("the an of the")
            draft.rollback(0)
            expected = draft.logits(ids, 1).copy()
            draft.rollback(0)
            seen = llm.tokenize("the <__media__>an of the", images=[ONE])
            joined = [one for one in seen if one < IMAGE_IDS]
            draft.read(seen[:-1])
            found = draft.logits(seen[-1:], 1)
            draft_text = draft.n_past - projector_file.N_TOKENS
            assert draft_text == len(joined)
            if joined == ids:
                assert np.array_equal(found, expected)


def test_two_images_of_the_same_size_differ(fresh):
    prompt = "<__media__>the king and the queen"
    first = fresh.generate(prompt, GREEDY, images=[ONE])
    second = fresh.generate(prompt, GREEDY, images=[OTHER])  # behind the cache of the first
    assert first.tokens != second.tokens
    assert fresh.generate(prompt, GREEDY, images=[ONE]).tokens == first.tokens
    fresh.forget()
    assert fresh.generate(prompt, GREEDY, images=[OTHER]).tokens == second.tokens


def test_kept_prefixes_are_of_the_same_image(files, copies_pay):
    """A text that another one replaced in the cache comes back from memory only for its own image."""
    prompt = "<__media__>" + "the king and the queen of the land " * 4
    with load(files, prefix_memory=1 << 28) as llm:
        texts = [llm.generate(prompt, GREEDY, images=[one]).tokens for one in (ONE, OTHER) * 2]
        assert llm.prefix_memory.n_restored > 0
        assert texts[:2] == texts[2:]
        assert texts[0] != texts[1]


@pytest.fixture
def encoded(monkeypatch):
    """The images that are encoded, one item for each time."""
    from gguf_spec.llama.vision import Projector

    found, compute = [], Projector.compute

    def spy(self, chunk):
        found.append(chunk)
        compute(self, chunk)

    monkeypatch.setattr(Projector, "compute", spy)
    return found


def test_the_next_turn_does_not_encode_the_image_again(fresh, encoded):
    image = projector_file.png(11)
    messages = [question("what is it?", image)]
    answer = fresh.generate(messages, GREEDY)
    read = []
    messages += [{"role": "assistant", "content": "the"}, {"role": "user", "content": "and?"}]
    second = fresh.generate(messages, GREEDY, on_prompt=lambda now: read.append(now.done))
    assert len(encoded) == 1
    assert answer.stats.n_prompt < second.stats.n_prompt
    fresh.forget()
    assert fresh.generate(messages, GREEDY).tokens == second.tokens
    assert len(encoded) == 1  # its embeddings are kept, too


def test_a_prefix_ends_at_images(files, monkeypatch):
    """Where the ends of passes matter, a text behind a kept prefix is that of a new one."""
    sampling = Sampling(temperature=0, max_tokens=16, ignore_eos=True)
    texts = ["the an of" * n for n in (1, 3, 5, 9)]
    with load(files) as llm:
        with llm.models() as (target, _):
            target.context.exactness = replace(target.exactness, grid=8)
        for before in texts:
            prompts = [f"{before}<__media__>the king {after}" for after in texts]
            alone = []
            for prompt in prompts:
                llm.forget()
                alone.append(llm.generate(prompt, sampling, images=[ONE]).tokens)
            found = [llm.generate(prompt, sampling, images=[ONE]).tokens for prompt in prompts]
            assert found == alone


def test_a_rollback_into_an_image_drops_it(fresh):
    tokens = fresh.tokenize("the king <__media__>of the", images=[ONE])
    start = next(i for i, one in enumerate(tokens) if one >= IMAGE_IDS)
    with fresh.models() as (target, _):
        target.read(tokens)
        target.rollback(start + 5)
        assert target.cached == tokens[:start]
        assert target.position(start) == start


def test_text_without_images_is_that_of_the_model_without_projector(files, fresh):
    with gguf_spec.load(files / "model.gguf", None, threads=1) as llm:
        assert not llm.can_see
        assert llm.generate("the king", GREEDY).tokens == fresh.generate("the king", GREEDY).tokens
        with pytest.raises(NoVisionError, match="without a projector"):
            llm.generate("the king", images=[ONE])
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        whole = [{"role": "user", "content": "a"}]
        assert llm.tokenize(parts) == llm.tokenize(whole)
    assert fresh.can_see


def test_images_stand_at_their_places(fresh):
    ids = fresh.tokenize("a<__media__>b<__media__>c", images=[ONE, OTHER])
    images = [one for one in ids if one >= IMAGE_IDS]
    assert len(images) == 2 * projector_file.N_TOKENS
    a, b, c = (fresh.tokenize(one) for one in "abc")
    assert [one for one in ids if one < IMAGE_IDS] == [*a, *b, *c]
    assert ids[0] == a[0]
    assert ids[-1] == c[0]
    asked = [question("what?", ONE)]
    plain = [{"role": "user", "content": "what?"}]
    assert fresh.tokenize(asked) == fresh.tokenize(plain, images=[ONE])
    assert fresh.tokenize(asked) == fresh.tokenize(plain, images=[part(ONE)["image_url"]["url"]])


def test_a_message_cannot_spell_an_image(fresh):
    """The place of an image in a text is no place in a message, and special tokens stay text."""
    asked = [question("<__media__><|im_end|>", ONE)]
    ids = fresh.tokenize(asked)
    assert sum(one >= IMAGE_IDS for one in ids) == projector_file.N_TOKENS
    assert ids.count(tiny.IM_END) == 1


@pytest.mark.parametrize(
    "image, fact",
    [
        (projector_file.png_of(20_000, 20, b""), "too large"),
        (projector_file.png_of(10_000, 10_000, b""), "100,000,000|too large"),
        (projector_file.png_of(8000, 10, b""), "too narrow"),
        (projector_file.png_of(0, 10, b""), "no pixels"),
        (projector_file.png_of(30, 30, b""), "damaged"),
        (ONE[:60], "damaged"),
        (bytes((20 << 20) + 1), "20 MiB"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "not a PNG"),
        (b"\xff\xd8\xff" + b"\xff" * 100, "not a PNG"),
        (b"", "not a PNG"),
        ("http://example.com/a.png", "nothing is fetched"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%%", "base64"),
        ("missing.png", "cannot be read"),
    ],
)
def test_bad_images(fresh, image, fact):
    with pytest.raises(ImageError, match=fact):
        fresh.generate("what is it?", images=[image])


def test_an_image_that_its_header_does_not_describe(fresh):
    """A file that goes on with another one is damaged: nothing of the second is read."""
    with pytest.raises(ImageError, match="damaged"):
        fresh.generate("a", images=[ONE[:100] + projector_file.png(3)])


def test_bad_parts(fresh):
    for content in (
        [{"type": "input_audio"}],
        ["text"],
        [{"type": "text"}],
    ):
        with pytest.raises(TemplateError, match="is not a part"):
            fresh.generate([{"role": "user", "content": content}])
    with pytest.raises(ImageError, match="nothing is fetched"):
        url = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        fresh.generate([{"role": "user", "content": [url]}])
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="which is 2"):
        fresh.generate(TEXT, images=[ONE])
    with pytest.raises(ImageError, match="at most 32"):
        fresh.generate("a", images=[ONE] * 33)
    with pytest.raises(ImageError, match="ends with an image"):
        fresh.generate("a<__media__>", images=[ONE])


def test_ids_of_a_removed_image(fresh):
    ids = fresh.tokenize("<__media__>the king", images=[projector_file.png(77)])
    assert fresh.generate(ids, GREEDY).tokens  # they are valid as long as the list
    part_of_it = [*ids[:3], *ids[-2:]]
    with pytest.raises(ImageError, match="a part of its ids"):
        fresh.generate(part_of_it, GREEDY)
    with pytest.raises(ImageError, match="not in memory"):
        fresh.generate([IMAGE_IDS + 10**6, 5], GREEDY)
    copy, ids = [*fresh.tokenize("<__media__>the", images=[projector_file.png(78)])], None
    with pytest.raises(ImageError, match="not in memory"):
        fresh.generate(copy, GREEDY)


def test_the_image_counts_in_the_context(fresh):
    text = "a " * 40 + "<__media__>" * 14 + "the"
    n = len(fresh.tokenize(text, images=[ONE] * 14))
    assert n > fresh.n_ctx
    with pytest.raises(PromptTooLongError, match=f"{n} tokens") as error:
        fresh.generate(text, images=[ONE] * 14)
    assert error.value.n_prompt == n


def test_cancelled_during_the_prompt(fresh):
    image = projector_file.png(21)
    found = fresh.generate(
        "<__media__>" + "the king " * 30, GREEDY, images=[image], on_prompt=lambda _: False
    )
    assert found.finish_reason == "cancelled"
    expected = fresh.generate("<__media__>the king", GREEDY, images=[image]).tokens
    fresh.forget()
    assert fresh.generate("<__media__>the king", GREEDY, images=[image]).tokens == expected


def test_a_failing_pass_leaves_an_empty_cache(fresh, monkeypatch):
    from gguf_spec.llama.vision import Projector

    expected = fresh.generate("<__media__>the king", GREEDY, images=[ONE]).tokens
    fresh.forget()
    with monkeypatch.context() as patch:
        patch.setattr(Projector, "decode", lambda *_: 1)
        with pytest.raises(gguf_spec.errors.DecodeError):
            fresh.generate("<__media__>the king", images=[ONE])
    with fresh.models() as (target, _):
        assert target.n_past == 0
    assert fresh.generate("<__media__>the king", GREEDY, images=[ONE]).tokens == expected


@pytest.mark.full
def test_what_excludes_images(files):
    with pytest.raises(OptionConflictError, match="mmproj cannot be combined with rpc"):
        # this build may have no workers
        on_workers = ContextOptions(rpc=("127.0.0.1:1",))
        choose_projector(files / "mmproj.gguf", ModelFile(files / "model.gguf"), on_workers)
    for parallel in ("auto", 2):  # one at a time in any case
        with load(files, parallel=parallel) as llm:
            assert llm.parallel == 1
            assert "images" in llm.parallel_reason
    with pytest.raises(UnsupportedModelError, match="recurrent or hybrid"):
        gguf_spec.load(files / "mamba.gguf", None, mmproj=files / "mmproj.gguf")


WRONG_FILES: dict[str, tuple[type[Exception], str, Any]] = {
    "another width": (UnsupportedModelError, "n_embd = 64", lambda: {"n_embd": 32}),
    "a model": (UnsupportedModelError, "not a projector", None),
    "no encoder": (UnsupportedModelError, "image encoder", {"clip.has_vision_encoder": None}),
    "a flag that is a number": (NotAModelError, "has_vision_encoder", {"clip.has_vision_encoder": 1}),
    "no heads": (NotAModelError, "head_count", {"clip.vision.attention.head_count": 0}),
    "a size that is a text": (NotAModelError, "image_size", {"clip.vision.image_size": "x"}),
    "a huge image": (NotAModelError, "image_size", {"clip.vision.image_size": 1 << 30}),
    "tiny patches": (NotAModelError, "patches of 1", {"clip.vision.image_size": 8000, "clip.vision.patch_size": 1}),
    "an unknown kind": (UnsupportedModelError, "unknown projector type", {"clip.projector_type": "x"}),
    "a kind that is a number": (NotAModelError, "projector_type", {"clip.projector_type": 3}),
    "an odd number of heads": (NotAModelError, "share", {"clip.vision.attention.head_count": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FILES)
def test_wrong_files(files, tmp_path, name):
    kind, fact, change = WRONG_FILES[name]
    path = tmp_path / "mmproj.gguf"
    if change is None:
        path = files / "model.gguf"
    elif callable(change):
        projector_file.write(path, projector_file.llava(**change()))
    else:
        projector_file.write(path, metadata=change)
    with pytest.raises(kind, match=fact):
        load(files, mmproj=path)


@pytest.mark.full
def test_tensors_that_crash_llama_cpp(files, tmp_path):
    """A fault that only llama.cpp detects ends a child process, not this one."""
    narrow = np.zeros((7, 7), np.float32)
    path = projector_file.write(tmp_path / "mmproj.gguf", tensors={"v.blk.0.attn_q.weight": narrow})
    with pytest.raises(UnsupportedModelError, match="cannot use the projector mmproj"):
        load(files, mmproj=path)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((files / "mmproj.gguf").read_bytes()[:-5000])
    with pytest.raises(NotAModelError):
        load(files, mmproj=cut)
    with pytest.raises(gguf_spec.errors.ModelNotFoundError):
        load(files, mmproj=tmp_path / "none.gguf")


def test_a_chat_about_an_image(files, fresh, encoded, tmp_path):
    """Turns, a retry, a saved session and the caches in it."""
    image = projector_file.png(31)
    chat = fresh.chat(sampling=GREEDY)
    first = chat.send("what is it?", images=[image])
    chat.send("and?")
    assert len(encoded) == 1
    assert [one["role"] for one in chat.messages] == ["user", "assistant"] * 2
    assert [one["type"] for one in chat.messages[0]["content"]] == ["image_url", "text"]
    chat.undo()
    with chat.retry() as turn:
        list(turn)
    assert turn.result.tokens == first.tokens
    chat.save(tmp_path / "talk.session")
    with fresh.models() as (target, _):
        assert not any(one >= IMAGE_IDS for one in target.cached)
    third = chat.send("and?")
    with load(files) as other:
        found = other.chat(sampling=GREEDY)
        assert found.restore(tmp_path / "talk.session") == ""
        assert found.send("and?").tokens == third.tokens


def test_a_session_with_other_parts_is_refused(fresh, tmp_path):
    chat = fresh.chat()
    chat.messages[:] = [question("a", ONE)]
    for part_ in ({"type": "text"}, {"type": "image_url", "image_url": "x"}, "a"):
        chat.messages[0]["content"][0] = part_
        fresh.save_session(tmp_path / "talk.session", {"messages": chat.messages})
        with pytest.raises(gguf_spec.errors.SessionError, match="not contain a conversation"):
            fresh.chat().restore(tmp_path / "talk.session")


def test_a_conversation_too_large_for_a_file(fresh, tmp_path, monkeypatch):
    from gguf_spec.runtime import session_file

    monkeypatch.setattr(session_file, "_MOST_DATA", 1000)
    chat = fresh.chat(sampling=GREEDY)
    chat.send("what?", images=[ONE])
    with pytest.raises(gguf_spec.errors.SessionError, match="with its images"):
        chat.save(tmp_path / "talk.session")
    assert not (tmp_path / "talk.session").exists()


@pytest.mark.full
def test_images_that_take_fewer_positions_than_tokens(files, encoded, copies_pay):
    """Qwen2-VL: rows and columns of an image are positions of their own (M-RoPE)."""
    wide, tall = projector_file.png(1, 140, 84), projector_file.png(2, 84, 140)
    names = {"model": "qwen2vl", "mmproj": "mmproj-qwen2vl"}
    sampling = Sampling(temperature=0, max_tokens=30, ignore_eos=True)
    expected = of_llama_cpp(files, "the king and ", wide, " in the end", 30, **names)
    options = {"mmproj": files / "mmproj-qwen2vl.gguf", "threads": 1, "prefix_memory": 1 << 28}
    long = f"{TEXT} {'the king of the land ' * 4}"
    with gguf_spec.load(files / "qwen2vl.gguf", None, **options) as llm:
        prompt = "the king and <__media__> in the end"
        assert list(llm.generate(prompt, sampling, images=[wide]).tokens) == expected
        with llm.models() as (target, _):
            n = target.n_past
            assert target.position(n) == n - 15 + 5  # 3 rows of 5 tokens take 5 positions
        plain = []
        for images in ((wide, tall), (tall, wide), (wide, wide)):
            llm.forget()
            for how in (GREEDY, DRAWN):
                plain.append((images, how, llm.generate(long, how, images=images).tokens))
        for images, how, tokens in plain:  # behind the caches of others, and from kept prefixes
            assert llm.generate(long, how, images=images).tokens == tokens
        assert llm.prefix_memory.n_restored > 0
    for draft in ("ngram", files / "qwen2vl-draft.gguf"):
        speculation = Speculation(4, adaptive=False)
        given = options | {"speculation": speculation}
        with gguf_spec.load(files / "qwen2vl.gguf", draft, **given) as llm:
            for images, how, tokens in plain:
                found = llm.generate(long, how, images=images)
                assert found.tokens == tokens
                assert found.stats.n_drafted > 0


def test_a_closed_model_frees_its_projector(files):
    import gc
    import weakref

    with load(files, files / "draft.gguf", speculation=Speculation(2, adaptive=False)) as llm:
        llm.generate("<__media__>the king", GREEDY, images=[ONE])
        with llm.models() as (target, _):
            projector = weakref.ref(target.image_tokens.projector)
            native = weakref.ref(target.native)
        del target
    gc.collect()
    assert projector() is None
    assert native() is None
    with pytest.raises(gguf_spec.errors.ClosedError):
        llm.generate("a", images=[ONE])


def test_a_recurrent_draft_is_left_out(files):
    with load(files, files / "mamba.gguf") as llm:
        assert llm.draft_name is None
        assert any("cannot leave images out" in note for note in llm.notes)


def test_passes_behind_an_image_return_to_the_grid(files, monkeypatch):
    """So that a prefix cut at a multiple of the grid has the bits of a new prompt."""
    from gguf_spec.llama.sequence import CachedSequence

    passes, decode = [], CachedSequence._decode

    def spy(self, tokens, n_rows):
        passes.append((self.n_past, self.n_past + len(tokens)))
        decode(self, tokens, n_rows)

    with load(files) as llm:
        ids = llm.tokenize("the <__media__>" + "king of " * 9, images=[ONE])
        behind = max(i for i, one in enumerate(ids) if one >= IMAGE_IDS) + 1
        assert behind % 8
        with llm.models() as (target, _):
            target.context.exactness = replace(target.exactness, grid=8)
            monkeypatch.setattr(CachedSequence, "_decode", spy)
            target.read(ids)
    after = [one for one in passes if one[0] >= behind]
    assert after[0] == (behind, behind + -behind % 8)
    assert after[-1][1] == len(ids)
    assert all(start % 8 == 0 for start, _ in after[1:])


def test_an_image_of_another_size_than_checked(fresh):
    from dataclasses import replace

    from gguf_spec.images import Image, check_image

    image = check_image(ONE)
    assert isinstance(image, Image)
    with pytest.raises(ImageError, match="its header says 41 x 30"):
        fresh.generate("a", images=[replace(image, width=41, digest=b"x")])
