"""LangChain's ChatLlamaCpp and LlamaCpp with speculation: one line more than without.

pip install langchain-community
python scripts/examples/langchain_example.py [MODEL.gguf]
"""

import sys
from pathlib import Path

import gguf_spec
import gguf_spec_compat

TALES = Path(gguf_spec.__file__).parent / "data" / "tales"
MODEL, DRAFT = str(TALES / "tales-target-Q8_0.gguf"), str(TALES / "tales-draft-Q4_0.gguf")


def main() -> None:
    gguf_spec_compat.install()  # from here on `from llama_cpp import Llama` means gguf_spec_compat.Llama
    from langchain_community.chat_models import ChatLlamaCpp
    from langchain_community.llms import LlamaCpp

    own = (
        {"model_path": sys.argv[1]}
        if len(sys.argv) > 1
        else {"model_path": MODEL, "model_kwargs": {"draft_model_path": DRAFT}}
    )
    chat = ChatLlamaCpp(**own, n_ctx=1024, max_tokens=80, temperature=0.7, verbose=False)
    for chunk in chat.stream(
        [("system", "You tell tales."), ("human", "Tell me a story about a fox and a king.")]
    ):
        print(chunk.content, end="", flush=True)
    print("\n---")
    print(LlamaCpp(**own, n_ctx=1024, max_tokens=60, verbose=False).invoke("Once upon a time"))


if __name__ == "__main__":
    main()
