import contextlib
import gc
import inspect
import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import llama_cpp
import numpy as np
import pytest
from llama_cpp import LlamaGrammar
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from gguf_spec import Speculation
from gguf_spec.errors import (
    ClosedError,
    EmptyPromptError,
    InvalidOptionError,
    ModelNotFoundError,
    PromptTooLongError,
)
from gguf_spec.runtime.generation import StatsRecorder
from gguf_spec_compat import Llama
from gguf_spec_compat import llama as module
from gguf_spec_compat.llama import HINTS, USUAL, UnsupportedError, kv_type
from tests.support import tiny

Original = llama_cpp.llama.Llama
PROMPTS = ["Once upon a time", "The king said to the fox", "There was once a miller who"]
HELLO = [{"role": "user", "content": "Tell me a story about a fox and a king."}]
GREEDY = {"temperature": 0, "max_tokens": 80}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Rome", "Bonn"]}, "days": {"enum": [1, 2, 3]}}, "required": ["city", "days"],
        },
    },
}  # fmt: skip


def llm_of(llama):
    """The LLM behind the classes of llama-cpp-python."""
    return llama._llm


def shape(value):
    """Return what a response looks like: keys, and types of values."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value[:1]]
    return (
        "number"
        if isinstance(value, float) or type(value).__module__ == "numpy"
        else type(value).__name__
    )


# ---- what is taken


def test_the_constructor_takes_all_that_llama_cpp_takes():
    parameters = inspect.signature(Original.__init__).parameters
    taken = inspect.signature(Llama.__init__).parameters
    for name, parameter in parameters.items():
        if name in ("self", "kwargs"):
            continue
        assert name in taken or name in HINTS or name in USUAL, name
        if name in USUAL:
            assert parameter.default in USUAL[name], name
    same = {
        name
        for name in taken
        if name in parameters and parameters[name].default == taken[name].default
    }
    assert set(taken) - same == {"draft_model_path", "speculation", "others", "flash_attn"}


@pytest.mark.parametrize("name", ["create_completion", "__call__", "create_chat_completion"])
def test_calls_take_the_same_arguments_in_the_same_order(name):
    def listed(kind):
        parameters = inspect.signature(getattr(kind, name)).parameters.values()
        return [(one.name, () if one.default == [] else one.default) for one in parameters]

    assert listed(Llama) == listed(Original)


UNUSUAL = {
    "split_mode": 0, "main_gpu": 1, "tensor_split": [1.0], "vocab_only": True, "use_mmap": False, "use_mlock": True, "kv_overrides": {"a": 1},
    "rope_scaling_type": 2, "attention_type": 1, "rope_freq_base": 500000.0, "rope_freq_scale": 0.5, "yarn_ext_factor": 1.0,
    "yarn_attn_factor": 2.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_orig_ctx": 4096, "offload_kqv": False,
    "op_offload": True, "swa_full": True, "lora_base": "x.gguf", "numa": True, "chat_handler": print, "draft_model": print, "tokenizer": print,
    "spm_infill": True, "f16_kv": False,
}  # fmt: skip


def test_every_argument_that_cannot_be_honoured_is_named(pair):
    assert set(UNUSUAL) == set(USUAL)
    others = {
        "n_threads_batch": 3,
        "type_k": 99,
        "type_v": 8,
        "chat_format": "functionary-v2",
        "n_thread": 2,
        "n_gpu_layers": 5,
        "lora_scale": 0,
    }
    for name, value in (UNUSUAL | others).items():
        if name == "lora_scale":
            continue
        with pytest.raises(InvalidOptionError) as info:
            Llama(
                pair[0], n_threads=1, verbose=False, **{name: value} if name != "n_threads" else {}
            )
        assert info.value.option == name
        said = f"Llama has no argument {name}." if name == "n_thread" else f"{name} is "
        assert str(info.value).startswith(said)
        assert "  " not in info.value.hint


def test_what_langchain_always_passes_is_taken(pair):
    given = {
        "rope_freq_scale": 1.0,
        "rope_freq_base": 10000.0,
        "lora_path": None,
        "lora_base": None,
        "n_ctx": 512,
        "n_parts": -1,
        "seed": -1,
    }
    given |= {
        "f16_kv": True,
        "logits_all": False,
        "vocab_only": False,
        "use_mlock": False,
        "n_threads": 1,
        "n_batch": 8,
        "use_mmap": True,
    }
    llama = Llama(pair[0], draft_model_path=None, last_n_tokens_size=64, verbose=False, **given)
    assert llama("Once", max_tokens=2)["usage"]["completion_tokens"] == 2
    llama.close()


def test_the_kinds_of_caches():
    assert [kv_type(None, None), kv_type(1, None), kv_type(8, 8), kv_type(0, 0)] == [
        "f16",
        "f16",
        "q8_0",
        "f32",
    ]
    with pytest.raises(InvalidOptionError, match="type_v is None but must be 8, as type_k"):
        kv_type(8, None)


@pytest.mark.full
def test_a_context_of_zero_is_what_the_model_was_trained_for(pair):
    llama = Llama(
        pair[0],
        draft_model_path="ngram",
        n_ctx=0,
        n_threads=1,
        type_k=8,
        type_v=8,
        flash_attn=True,
        verbose=False,
    )
    assert llama.n_ctx() == llama.context_params.n_ctx == 2048
    with llm_of(llama).models() as (target, _):
        options = target.options
    assert (options.kv_type, options.flash_attention, options.threads) == ("q8_0", "on", 1)
    llama.close()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelNotFoundError):
        Llama(str(tmp_path / "none.gguf"))


@pytest.mark.full
def test_the_draft_is_used(pair):
    fixed = Speculation(k=4, adaptive=False, drafter="model")
    llama = Llama(pair[0], draft_model_path=pair[1], speculation=fixed, n_threads=1, verbose=False)
    with llm_of(llama).stream("Once upon a time") as stream:
        assert sum(chunk.n_accepted for chunk in stream) > 0
    llama.close()


@pytest.mark.full
def test_prompt_lookup_of_llama_cpp_python_drafts_from_the_text(pair):
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=10)
    with contextlib.closing(Llama(pair[0], draft_model=lookup, n_threads=1, verbose=False)) as one:
        assert llm_of(one).draft_name is None
        assert llm_of(one).speculation.k > 0


@pytest.mark.parametrize(
    ("names", "pattern", "found"),
    [
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], "*Q8_0.gguf", "a-Q8_0.gguf"),
        (["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"], "b-*.gguf", "b-00001-of-00002.gguf"),
        (["a-Q4_0.gguf", "a-Q8_0.gguf"], "*.gguf", "2 models match: a-Q4_0.gguf, a-Q8_0.gguf"),
        (["a.gguf"], "*Q8_0.gguf", "none is"),
    ],
)
def test_a_pattern_of_from_pretrained_names_one_model(pair, monkeypatch, names, pattern, found):
    pulled = []
    monkeypatch.setattr(
        module.hub, "list_files", lambda _: ("0" * 40, [(n, 1, None) for n in names])
    )
    monkeypatch.setattr(module.download, "pull", pulled.append)
    monkeypatch.setattr(Llama, "__init__", lambda self, spec: setattr(self, "_llm", None))
    if found in names:
        Llama.from_pretrained(
            "me/repo", pattern, additional_files=[names[-1]] if "of" in found else None
        )
        assert [entry.parts[0].file for entry in pulled] == [found]
    else:
        with pytest.raises(InvalidOptionError, match=re.escape(found)):
            Llama.from_pretrained("me/repo", pattern)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["eval", "sample", "n_tokens", "save_state", "load_state", "scores"]
)
def test_what_is_not_here_says_what_to_use(ours, name):
    with pytest.raises(UnsupportedError) as caught:
        getattr(ours, name)
    assert str(caught.value) == f"gguf_spec_compat.Llama has no {name}."
    assert caught.value.hint.startswith("use ")


# ---- the same answers


@pytest.mark.full
@pytest.mark.parametrize("name", ["chatml", "llama-2", "vicuna", "gemma", "mistral-instruct"])
def test_a_format_of_llama_cpp_python_gives_the_same_answer(pair, name):
    messages = [{"role": "user", "content": "Tell me of the king."}]
    texts = []
    for kind in (Llama, llama_cpp.Llama):
        given = {"n_threads": 1, "verbose": False, "n_ctx": 256, "chat_format": name}
        with contextlib.closing(kind(str(pair[0]), **given)) as one:
            answer = one.create_chat_completion(messages, temperature=0.0, max_tokens=12)
            texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1]


@pytest.mark.full
def test_metadata_of_the_file_and_the_vocabulary(ours, theirs):
    assert ours.metadata == theirs.metadata
    assert ours.chat_format == theirs.chat_format
    for name in ("n_ctx", "n_vocab", "token_bos", "token_eos"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    for text in (b"", b"Once upon", " caf\u00e9 <|im_end|>\n".encode()):
        for flags in ({}, {"add_bos": False}, {"special": True}):
            tokens = theirs.tokenize(text, **flags)
            assert ours.tokenize(text, **flags) == tokens
            assert ours.detokenize(tokens) == theirs.detokenize(tokens)
            assert ours.detokenize(tokens, special=True) == theirs.detokenize(tokens, special=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "more", [{}, {"echo": True}, {"stop": ["king", " he"]}, {"stop": " and"}], ids=str
)
def test_greedy_completions_are_the_same(ours, theirs, prompt, more):
    a, b = ours(prompt, **GREEDY, **more), theirs(prompt, **GREEDY, **more)
    assert (a["choices"], a["usage"]) == (b["choices"], b["usage"])
    assert shape(a) == shape(b)


PENALTIES = [
    {"repeat_penalty": 1.3},
    {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"repeat_penalty": 1000.0},
    {"repeat_penalty": 0.8},
]


@pytest.mark.full
@pytest.mark.parametrize("prompt", [*PROMPTS, "Once upon a time there was a king. Once upon a"])
@pytest.mark.parametrize("more", PENALTIES, ids=str)
def test_greedy_texts_with_penalties_are_the_same(ours, theirs, prompt, more):
    """The penalties of llama-cpp-python count the answer only."""
    assert ours(prompt, **GREEDY, **more)["choices"] == theirs(prompt, **GREEDY, **more)["choices"]
    parts = [part["choices"][0]["text"] for part in ours(prompt, **GREEDY, **more, stream=True)]
    assert "".join(parts) == theirs(prompt, **GREEDY, **more)["choices"][0]["text"]


def test_bytes_that_are_not_utf8_are_read_and_written_as_there(ours, theirs):
    for data in (b"\xff\xfeOnce", b"caf\xe9 and \xc3\xa9", b"\xe2\x82"):
        assert ours.tokenize(data) == theirs.tokenize(data)
    bias = dict.fromkeys(theirs.tokenize(b"\xe2\x82", add_bos=False), 100.0)
    ban = {"temperature": 0, "max_tokens": 8, "logit_bias": bias}
    text = ours("Once", **ban)["choices"][0]["text"]
    assert text == theirs("Once", **ban)["choices"][0]["text"]
    assert "\ufffd" not in text


def test_methods_of_the_original_are_here_or_refused_by_name(ours):
    for name in vars(Original):
        if name.startswith("_"):
            continue
        try:
            getattr(ours, name)
        except UnsupportedError as error:
            assert error.name == name
            assert error.hint
    assert not hasattr(ours, "eval")
    assert not hasattr(ours, "no such thing")


def test_tokens_as_they_are_generated(ours, theirs):
    tokens = theirs.tokenize(b"Once upon a time")
    expected = list(itertools.islice(theirs.generate(tokens, temp=0, repeat_penalty=1.2), 30))
    assert list(itertools.islice(ours.generate(tokens, temp=0, repeat_penalty=1.2), 30)) == expected
    ours.reset()
    ours.set_cache(None)
    assert list(itertools.islice(ours.generate(tokens, temp=0, repeat_penalty=1.2), 30)) == expected
    with pytest.raises(InvalidOptionError, match="logits_processor"):
        ours.generate(tokens, logits_processor=[print])


@pytest.mark.full
def test_small_methods_give_the_same(ours, theirs):
    assert ours.n_embd() == theirs.n_embd()
    assert ours.token_nl() == theirs.token_nl()
    assert ours.tokenizer().encode("Once <|im_end|>") == theirs.tokenizer().encode(
        "Once <|im_end|>"
    )
    assert ours.tokenizer().decode(ours.tokenizer().encode("Once")) == theirs.tokenizer().decode(
        theirs.tokenizer().encode("Once")
    )
    assert ours.longest_token_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert ours.longest_token_prefix([1, 2, 3], (1, 2)) == 2
    assert ours.longest_token_prefix(np.array([1, 2, 3]), [1, 2, 4]) == 2
    answer = ours.create_chat_completion_openai_v1(HELLO, **GREEDY)
    assert (
        answer.choices[0].message.content
        == theirs.create_chat_completion(HELLO, **GREEDY)["choices"][0]["message"]["content"]
    )
    parts = ours.create_chat_completion_openai_v1(HELLO, **GREEDY, stream=True)
    assert (
        "".join(part.choices[0].delta.content or "" for part in parts)
        == answer.choices[0].message.content
    )


def test_token_ids_are_a_prompt_too(ours, theirs):
    tokens = theirs.tokenize(b"Once upon a time")
    assert ours(tokens, **GREEDY)["choices"] == theirs(tokens, **GREEDY)["choices"]


@pytest.mark.full
@pytest.mark.parametrize(
    "more", [{}, {"stop": ["king"]}, {"logprobs": True, "top_logprobs": 3}], ids=str
)
def test_greedy_chats_are_the_same(ours, theirs, more):
    a, b = (
        ours.create_chat_completion(HELLO, **GREEDY, **more),
        theirs.create_chat_completion(HELLO, **GREEDY, **more),
    )
    (one,), (other,) = a["choices"], b["choices"]
    assert (one["message"], one["finish_reason"], a["usage"]) == (
        other["message"],
        other["finish_reason"],
        b["usage"],
    )
    assert shape(a) == shape(b)


def test_log_probabilities_are_the_same(ours, theirs):
    a, b = (
        one("Once upon a time", max_tokens=20, temperature=0, logprobs=3)["choices"][0]["logprobs"]
        for one in (ours, theirs)
    )
    assert (a["tokens"], a["text_offset"]) == (b["tokens"], b["text_offset"])
    assert a["token_logprobs"] == pytest.approx(b["token_logprobs"], abs=1e-3)
    for top, other in zip(a["top_logprobs"], b["top_logprobs"], strict=True):
        assert top == pytest.approx(other, abs=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("more", [{}, {"logprobs": 2}], ids=str)
def test_parts_of_completions_look_the_same_and_join_to_the_same(ours, theirs, more):
    a, b = (list(one("Once upon a time", stream=True, **GREEDY, **more)) for one in (ours, theirs))
    assert (
        "".join(part["choices"][0]["text"] for part in a)
        == ours("Once upon a time", **GREEDY)["choices"][0]["text"]
    )
    assert [shape(a[0]), shape(a[-1])] == [shape(b[0]), shape(b[-1])]
    assert len({part["id"] for part in a}) == 1
    if more:
        tokens = [token for part in a[:-1] for token in part["choices"][0]["logprobs"]["tokens"]]
        assert "".join(tokens) == "".join(part["choices"][0]["text"] for part in a)


@pytest.mark.full
def test_parts_of_chats_look_the_same_and_join_to_the_same(ours, theirs):
    a, b = (
        list(one.create_chat_completion(HELLO, stream=True, **GREEDY)) for one in (ours, theirs)
    )
    whole = ours.create_chat_completion(HELLO, **GREEDY)["choices"][0]["message"]["content"]
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in a) == whole
    assert [shape(a[0]), shape(a[1]), shape(a[-1])] == [shape(b[0]), shape(b[1]), shape(b[-1])]


@pytest.mark.full
def test_a_tool_that_must_be_called(ours, theirs):
    asked = {
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "max_tokens": 60,
        "temperature": 0,
    }
    a, b = (
        ours.create_chat_completion(HELLO, **asked),
        theirs.create_chat_completion(HELLO, **asked),
    )
    assert shape(a) == shape(b)
    message = a["choices"][0]["message"]
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert arguments.keys() == {"city", "days"}
    assert a["choices"][0]["finish_reason"] == "tool_calls"
    old = ours.create_chat_completion(
        HELLO,
        functions=[WEATHER["function"]],
        function_call={"name": "weather"},
        max_tokens=60,
        temperature=0,
    )
    assert old["choices"][0]["message"]["function_call"] == message["function_call"]
    parts = list(ours.create_chat_completion(HELLO, stream=True, **asked))
    calls = [part["choices"][0]["delta"]["tool_calls"][0] for part in parts[1:-1]]
    assert (
        "".join(call["function"]["arguments"] for call in calls)
        == message["tool_calls"][0]["function"]["arguments"]
    )
    assert [call["function"]["name"] for call in calls] == ["weather"] + [None] * (len(calls) - 1)
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


# ---- what a call asks for


@pytest.mark.full
def test_a_seed_gives_the_same_text_again_and_others_give_others(pair, ours):
    def text(llama, **more):
        return llama("Once upon a time", max_tokens=30, **more)["choices"][0]["text"]

    assert text(ours, seed=3) == text(ours, seed=3) != text(ours, seed=4)
    assert len({text(ours) for _ in range(3)}) == len({text(ours, seed=-1) for _ in range(3)}) == 3
    ours.set_seed(7)
    first = [text(ours) for _ in range(3)]
    ours.set_seed(7)
    assert first == [text(ours) for _ in range(3)]
    assert len(set(first)) == 3
    ours.set_seed(-1)


@pytest.mark.full
def test_biases_grammars_and_formats(ours):
    he = ours.tokenize(b" he", add_bos=False)
    assert len(he) == 1
    assert he[0] not in ours.tokenize(
        ours("The king said that", **GREEDY, logit_bias={str(he[0]): -100})["choices"][0][
            "text"
        ].encode()
    )
    for grammar in ('root ::= " yes" | " no"', LlamaGrammar.from_string('root ::= " yes" | " no"')):
        assert ours("Is it so?", grammar=grammar, max_tokens=9)["choices"][0]["text"] in (
            " yes",
            " no",
        )
    schema = WEATHER["function"]["parameters"]
    formats = [
        {"type": "json_object"},
        {"type": "json_object", "schema": schema},
        {"type": "json_schema", "json_schema": {"schema": schema}},
    ]
    for asked in formats:
        answer = ours.create_chat_completion(
            HELLO, response_format=asked, max_tokens=200, temperature=0.7, seed=1
        )["choices"][0]
        if answer["finish_reason"] == "stop":
            assert isinstance(json.loads(answer["message"]["content"]), dict)
        assert answer["message"]["content"].startswith("{")
    assert json.loads(answer["message"]["content"]).keys() == {"city", "days"}


REFUSED = [
    {"suffix": "x"}, {"stopping_criteria": print}, {"logits_processor": print}, {"tfs_z": 0.9}, {"mirostat_mode": 2}, {"grammar": 3},
    {"logit_bias": {"x": 1}}, {"temperature": -1}, {"seed": 2**70}, {"logprobs": 1000}, {"echo": True, "logprobs": 1},
]  # fmt: skip
REFUSED_IN_CHATS = [
    {"response_format": {"type": "xml"}}, {"response_format": {"type": "json_schema"}}, {"top_logprobs": 2}, {"tool_choice": "required"},
    {"function_call": {"name": "none"}}, {"tools": [WEATHER]}, {"grammar": "root ::= [a-z]", "response_format": {"type": "json_object"}},
]  # fmt: skip


@pytest.mark.parametrize("more", REFUSED, ids=str)
def test_a_completion_that_cannot_be_had_names_the_argument(ours, more):
    for stream in (False, True):  # before the first part is asked for, too
        with pytest.raises(InvalidOptionError) as info:
            ours("Once", stream=stream, **more)
        assert info.value.option == next(iter(more))


@pytest.mark.parametrize("more", REFUSED_IN_CHATS, ids=str)
def test_a_chat_that_cannot_be_had_names_the_argument(ours, more):
    with pytest.raises(InvalidOptionError) as info:
        ours.create_chat_completion(HELLO, **more)
    assert info.value.option == next(iter(more))


def test_messages_in_parts(ours):
    parts = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Tell me a story "},
                {"type": "text", "text": "about a fox and a king."},
            ],
        }
    ]
    assert (
        ours.create_chat_completion(parts, **GREEDY)["usage"]
        == ours.create_chat_completion(HELLO, **GREEDY)["usage"]
    )
    with pytest.raises(InvalidOptionError, match="messages is"):
        ours.create_chat_completion(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
        )


def test_empty_prompts_and_prompts_that_are_too_long(ours):
    with pytest.raises(EmptyPromptError):
        ours("")
    with pytest.raises(ValueError, match="prompt"):
        ours("one two three " * 500)
    with pytest.raises(PromptTooLongError):
        ours("one two three " * 500)
    with pytest.raises(PromptTooLongError):
        next(ours("one two three " * 500, stream=True))


# ---- several readers


@pytest.mark.full
def test_streams_that_are_read_in_turns_from_few_threads(ours):
    """As LangChain does under asyncio: more streams than threads, each part read by another thread."""
    alone = [ours(prompt, **GREEDY)["choices"][0]["text"] for prompt in PROMPTS]
    streams = [ours(prompt, stream=True, **GREEDY) for prompt in PROMPTS]
    texts = ["" for _ in streams]
    with ThreadPoolExecutor(2) as pool:
        left = set(range(len(streams)))
        while left:
            for i, part in [(i, pool.submit(next, streams[i], None)) for i in sorted(left)]:
                one = part.result(timeout=180)
                texts[i] += one["choices"][0]["text"] if one else ""
                left -= set() if one else {i}
    assert texts == alone


def test_an_unread_stream_does_not_block_other_requests(ours):
    left = ours(PROMPTS[0], stream=True, **GREEDY)
    next(left)
    assert ours(PROMPTS[1], **GREEDY)["usage"]["completion_tokens"] == 80
    assert "".join(part["choices"][0]["text"] for part in left)


@pytest.mark.full
def test_a_stream_that_is_dropped_ends(ours, monkeypatch):
    quick, n = StatsRecorder.round_is_done, []
    monkeypatch.setattr(
        StatsRecorder,
        "round_is_done",
        lambda *given: (n.append(1), time.sleep(0.05), quick(*given)),
    )  # a minute, to its end

    stream = ours(PROMPTS[0], stream=True, temperature=0.8, max_tokens=0)
    next(stream)
    assert llm_of(ours).engine.queue.first
    del stream
    gc.collect()
    llm_of(ours).snapshot()  # it waits for the turn
    assert llm_of(ours).engine.queue.first is None
    assert len(n) < 100


def test_close_ends_streams_and_all_else(pair):
    llama = Llama(pair[0], draft_model_path=None, n_threads=1, verbose=False)
    stream = llama("Once upon a time", stream=True, max_tokens=400)
    next(stream)
    llama.close()
    llama.close()
    for call in (lambda: llama("x"), lambda: llama.tokenize(b"x"), llama.token_eos):
        with pytest.raises(ClosedError):
            call()
    assert len(list(stream)) < 400


@pytest.mark.full
def test_a_dropped_object_frees_its_memory(pair):
    llama = Llama(pair[0], draft_model_path=None, n_threads=1, verbose=False)
    inner = llm_of(llama)
    del llama
    gc.collect()
    with pytest.raises(ClosedError):
        inner.tokenize("x")


# ---- the hub


@pytest.mark.parametrize(
    "more",
    [
        {"additional_files": ["x"]},
        {"local_dir": "x"},
        {"cache_dir": "x"},
        {"local_dir_use_symlinks": True},
    ],
    ids=str,
)
def test_what_from_pretrained_cannot_do_is_named(more, monkeypatch):
    """Before the hub is asked for the files that a pattern matches."""
    monkeypatch.setattr(module.hub, "list_files", None)
    # parts of a split model are no further files, so these need the name
    names = ["x.gguf"] + ["*q4.gguf"] * ("additional_files" not in more)
    for name in names:
        with pytest.raises(InvalidOptionError) as info:
            Llama.from_pretrained("someone/thing", name, **more)
        assert info.value.option == next(iter(more))


def test_tools_are_shown_where_the_template_has_a_place_for_them(tmp_path):
    template = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    path = tiny.write(tmp_path / "tools.gguf", metadata={"tokenizer.chat_template": template})
    llama = Llama(path, draft_model_path=None, n_threads=1, verbose=False)
    asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    n = [
        llama.create_chat_completion(**asked, **more)["usage"]["prompt_tokens"]
        for more in ({}, {"tools": [WEATHER]})
    ]
    assert n[1] - n[0] == len(llama.tokenize(b"weather"))
    for choice, expected in (("auto", n[1]), ("none", n[0])):
        assert (
            llama.create_chat_completion(**asked, tools=[WEATHER], tool_choice=choice)["usage"][
                "prompt_tokens"
            ]
            == expected
        )
    llama.close()
