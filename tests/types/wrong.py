"""Wrong names and options. Each line of a function is red in an editor, and raises an error of the type that the comment names."""

import gguf_spec
from gguf_spec import LLM, AsyncLLM, Chat, Sampling, models, server


def names() -> None:
    gguf_spec.Lod  # AttributeError
    gguf_spec.GgufError  # AttributeError
    gguf_spec.errors.ModelMissingError  # AttributeError
    models.list_all  # AttributeError
    server.Setting  # AttributeError


def options() -> None:
    gguf_spec.load("tales", ctx=512)  # OptionTypeError
    gguf_spec.load("tales", n_ctx="512")  # InvalidOptionError
    gguf_spec.load("tales", sampling=Sampling())  # OptionTypeError
    Sampling(temp=0.5)  # OptionTypeError
    Sampling(top_k="40")  # OptionTypeError
    Sampling(overflow="drop")  # InvalidOptionError
    gguf_spec.Speculation(draft=4)  # OptionTypeError
    server.Settings(prot=8080)  # OptionTypeError


def requests(llm: LLM, chat: Chat) -> None:
    llm.generate("a", temp=0.5)  # OptionTypeError
    llm.generate("a", max_tokens="5")  # OptionTypeError
    llm.generate("a", speculation=4)  # OptionTypeError
    llm.stream("a", n_predict=5)  # OptionTypeError
    llm.stream("a", stop_tokens="a")  # OptionTypeError
    llm.generate_many(["a"], echos=True)  # OptionTypeError
    llm.generate_tokens([1], temp=0.5)  # OptionTypeError
    llm.ask("a", temp=0.5)  # OptionTypeError
    llm.ask("a", thinking=False)  # OptionTypeError
    llm.edit("a", "b", temp=0.5)  # OptionTypeError
    llm.chat(prompt="a")  # OptionTypeError
    llm.chat(overflow="stop")  # InvalidOptionError
    chat.send("a", temp=0.5)  # OptionTypeError
    chat.stream("a", top_kk=5)  # OptionTypeError
    chat.retry(temp=0.5)  # OptionTypeError
    llm.embed("a", normalise=True)  # OptionTypeError
    llm.rerank("a", ["b"], top=1)  # OptionTypeError
    llm.tokenize("a", specials=True)  # OptionTypeError
    llm.choose("a", ["b"], thinks=True)  # OptionTypeError
    llm.choose("a", ["b"], prefill=1)  # OptionTypeError
    llm.score("a", logprob=1)  # OptionTypeError
    server.serve_in_thread(llm, prot=8080)  # OptionTypeError


async def awaited(llm: AsyncLLM) -> None:
    await AsyncLLM.load("tales", ctx=512)  # OptionTypeError
    await llm.generate("a", temp=0.5)  # OptionTypeError
    await llm.ask("a", temp=0.5)  # OptionTypeError
    await llm.edit("a", "b", temp=0.5)  # OptionTypeError
    await llm.chat().send("a", temp=0.5)  # OptionTypeError
    llm.chat(prompt="a")  # OptionTypeError
    await llm.embed("a", normalise=True)  # OptionTypeError
    await llm.rerank("a", ["b"], top=1)  # OptionTypeError
    await llm.choose("a", ["b"], thinks=True)  # OptionTypeError
    llm.stream("a", temp=0.5)  # OptionTypeError
    llm.chat().stream("a", temp=0.5)  # OptionTypeError
