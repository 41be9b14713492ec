"""Members of `llama_cpp.Llama` that are not supported."""

from __future__ import annotations

_DECODING = (
    "use generate_tokens or stream_tokens of gguf_spec.LLM, which take token ids; on_token gets "
    "each token."
)
_STATE = "use gguf_spec.load(...).chat() and Chat.save to save a conversation."
_NATIVE = "use llama_cpp.Llama where llama.cpp's own objects are needed."
# Members of `llama_cpp.Llama` that are not supported -> hint for the error.
NOT_HERE = {
    "eval": _DECODING,
    "sample": _DECODING,
    "eval_tokens": _DECODING,
    "eval_logits": _DECODING,
    "input_ids": _DECODING,
    "scores": _DECODING,
    "logits_to_logprobs": "request logprobs in a completion.",
    "save_state": _STATE,
    "load_state": _STATE,
    "ctx": _NATIVE,
    "model": _NATIVE,
}
