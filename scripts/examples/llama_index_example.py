"""LlamaIndex's LlamaCPP with speculation: one line more than without.

pip install llama-index-llms-llama-cpp
python scripts/examples/llama_index_example.py [MODEL.gguf]
"""

import sys
from pathlib import Path

import gguf_spec
import gguf_spec_compat

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
MODEL, DRAFT = str(TALES / "tales-target-Q8_0.gguf"), str(TALES / "tales-draft-Q4_0.gguf")


def as_chatml(messages) -> str:
    """Put messages as the bundled model reads them: LlamaCPP leaves that to its user."""
    return (
        "".join(f"<|im_start|>{one.role.value}\n{one.content}<|im_end|>\n" for one in messages)
        + "<|im_start|>assistant\n"
    )


def main() -> None:
    gguf_spec_compat.install()  # from here on `from llama_cpp import Llama` means gguf_spec_compat.Llama
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.llama_cpp import LlamaCPP

    own = (
        {"model_path": sys.argv[1]}
        if len(sys.argv) > 1
        else {"model_path": MODEL, "model_kwargs": {"draft_model_path": DRAFT}}
    )
    llm = LlamaCPP(
        **own,
        context_window=1024,
        max_new_tokens=80,
        temperature=0.7,
        verbose=False,
        messages_to_prompt=as_chatml,
        completion_to_prompt=str,
    )
    for part in llm.stream_chat(
        [ChatMessage(role="user", content="Tell me a story about a fox and a king.")]
    ):
        print(part.delta, end="", flush=True)
    print("\n---")
    print(llm.complete("Once upon a time").text)


if __name__ == "__main__":
    main()
