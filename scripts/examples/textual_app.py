"""A chat in the terminal with Textual: the answer as it comes, Escape to stop, the speed below.

    pip install textual
    python scripts/examples/textual_app.py [MODEL]

Textual runs on asyncio, so AsyncLLM needs no thread of yours: a worker of Textual loads the model, and one answers. Cancelling it ends the
generation within one round.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, Label, Static
from textual.worker import Worker

from gguf_spec import AsyncLLM, Sampling
from gguf_spec.errors import GgufSpecError


class ChatApp(App[None]):
    """The terminal application."""

    CSS = """
    #answers { padding: 1 2; }
    .you { color: $accent; text-style: bold; margin: 1 0 0 0; }
    .note { color: $error; }
    #status { padding: 0 2; color: $text-muted; }
    """
    BINDINGS: ClassVar = [
        Binding("escape", "stop", "Stop the answer"),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(self, model: str = "tales") -> None:
        super().__init__()
        self._model = model
        self._llm: AsyncLLM | None = None
        self._answer: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """Lay out the window."""
        yield VerticalScroll(id="answers")
        yield Label(f"Loading {self._model} …", id="status", markup=False)
        yield Input(placeholder="Ask something", disabled=True)
        yield Footer()

    def on_mount(self) -> None:
        """Load the model in the background."""
        self.run_worker(self._load())

    async def _load(self) -> None:
        try:
            self._llm = await AsyncLLM.load(self._model)
        except GgufSpecError as error:
            self._say(f"{error} {error.hint}")
            return
        self._chat = self._llm.chat(sampling=Sampling(max_tokens=1000), overflow="shift")
        self._say(f"{self._llm.llm.name}, {self._llm.llm.n_ctx:,} tokens of context")
        field = self.query_one(Input)
        field.disabled = False
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer the question, unless an answer is under way."""
        question = event.value.strip()
        if question and not (self._answer and self._answer.is_running):
            event.input.clear()
            self._answer = self.run_worker(self._reply(question))

    async def _reply(self, question: str) -> None:
        answers = self.query_one("#answers", VerticalScroll)
        answer = Static(markup=False)
        await answers.mount(Static(question, classes="you", markup=False), answer)
        text = ""
        try:
            async with self._chat.stream(question) as turn:
                async for chunk in turn:
                    text += chunk.text
                    answer.update(text)
                    answers.scroll_end(animate=False)
                    self._show(turn.stats)
        except GgufSpecError as error:
            await answers.mount(Static(f"{error} {error.hint}", classes="note", markup=False))

    def _show(self, stats: object) -> None:
        speed = f"{stats.n_generated} tokens, {stats.tokens_per_s:,.0f} tok/s"
        drafted = f", {stats.acceptance:.0%} of {stats.n_drafted} drafted tokens accepted"
        self._say(speed + (drafted if stats.n_drafted else ""))

    def _say(self, text: str) -> None:
        self.query_one("#status", Label).update(text)

    def action_stop(self) -> None:
        """End the answer that is being written."""
        if self._answer and self._answer.is_running:
            self._answer.cancel()
            self._say("Stopped.")

    async def on_unmount(self) -> None:
        """Free the model."""
        if self._llm:
            await self._llm.aclose()


if __name__ == "__main__":
    ChatApp(sys.argv[1] if len(sys.argv) > 1 else "tales").run()
