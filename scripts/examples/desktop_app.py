"""A window to chat in: the answer as it comes, a stop button, the speed. Tk and gguf_spec, nothing else.

    python scripts/examples/desktop_app.py [MODEL]

One thread owns the model: it loads, answers and frees it, and never touches the window. The window never waits for it: what happened comes
through a queue, which is looked at 30 times a second.
"""

from __future__ import annotations

import queue
import sys
import threading
import tkinter as tk
from tkinter import font, ttk
from typing import TYPE_CHECKING

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import GgufSpecError

if TYPE_CHECKING:
    from gguf_spec import Chat, Progress, Turn

Event = tuple[str, object]  # kind of the event, and its data
LOOK_MS = 33


class Engine(threading.Thread):
    """Owns the model. `events` has its events; the other methods may be called from any thread."""

    def __init__(self, model: str) -> None:
        super().__init__(name="engine")
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._model = model
        self._questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._quitting = threading.Event()
        self._turn: Turn | None = None

    def ask(self, question: str) -> None:
        self._questions.put(question)

    def stop(self) -> None:
        """End the answer that is being written, after the round that runs."""
        turn = self._turn
        if turn:
            turn.cancel()

    def quit(self) -> None:
        """End it all, wherever it is: loading, reading a prompt, writing an answer, waiting."""
        self._quitting.set()
        self._questions.put(None)
        self.stop()

    def run(self) -> None:
        try:
            with gguf_spec.load(self._model, progress=self._progress) as llm:
                self.events.put(("ready", f"{llm.name}, {llm.n_ctx:,} tokens of context"))
                chat = llm.chat(sampling=Sampling(max_tokens=1000), overflow="shift")
                while (
                    question := self._questions.get()
                ) is not None and not self._quitting.is_set():
                    self._answer(chat, question)
        except GgufSpecError as error:
            self.events.put(("failed", f"{error} {error.hint}"))

    def _progress(self, now: Progress) -> bool:
        self.events.put(("loading", now.share))
        return not self._quitting.is_set()

    def _answer(self, chat: Chat, question: str) -> None:
        try:
            with chat.stream(question) as turn:
                self._turn = turn
                if self._quitting.is_set():  # since the last look
                    turn.cancel()
                for chunk in turn:
                    self.events.put(("text", chunk.text))
                    self.events.put(("stats", turn.stats))
            self.events.put(("answered", turn.result.finish_reason))
        except GgufSpecError as error:
            self.events.put(("refused", f"{error} {error.hint}"))
        finally:
            self._turn = None


class Window(tk.Tk):
    """Shows what the engine does, and asks it."""

    def __init__(self, model: str) -> None:
        super().__init__(className="gguf-spec")
        self.title(f"{model} \N{EM DASH} gguf-spec")
        self.geometry("760x560")
        self.minsize(420, 320)
        self._lay_out()
        self.protocol("WM_DELETE_WINDOW", self.leave)
        self.engine = Engine(model)
        self.engine.start()
        self._say(f"Loading {model} \N{HORIZONTAL ELLIPSIS}")
        self._look()

    def _lay_out(self) -> None:
        ttk.Style(self).theme_use("clam")
        text = font.nametofont("TkTextFont")
        text.configure(size=12)
        bar = ttk.Frame(self, padding=(12, 6))
        bar.pack(side="bottom", fill="x")
        self.status = ttk.Label(bar, anchor="w")
        self.status.pack(side="left", fill="x", expand=True)
        self.progress = ttk.Progressbar(bar, length=180, maximum=1.0)
        self.progress.pack(side="right")
        bar.bind("<Configure>", lambda event: self.status.configure(wraplength=event.width - 24))
        ask = ttk.Frame(self, padding=(12, 6))
        ask.pack(side="bottom", fill="x")
        self.button = ttk.Button(ask, text="Cancel", width=8, command=self._pressed)
        self.button.pack(side="right", fill="y", padx=(8, 0))
        self.question = tk.Text(
            ask, height=2, wrap="word", font=text, relief="flat", padx=8, pady=6, undo=True
        )
        self.question.configure(
            highlightthickness=1, highlightbackground="#9ca3af", highlightcolor="#1d4ed8"
        )
        self.question.pack(side="left", fill="x", expand=True)
        self.question.bind("<Return>", self._entered)
        self.question.focus_set()
        shown = ttk.Frame(self, padding=(12, 12, 12, 0))
        shown.pack(side="top", fill="both", expand=True)
        self.answers = tk.Text(
            shown,
            wrap="word",
            font=text,
            state="disabled",
            relief="flat",
            padx=12,
            pady=8,
            spacing2=3,
            cursor="arrow",
        )
        scroll = ttk.Scrollbar(shown, command=self.answers.yview)
        self.answers.configure(yscrollcommand=scroll.set)
        scroll.pack(side="right", fill="y")
        self.answers.pack(side="left", fill="both", expand=True)
        self.answers.tag_configure(
            "you",
            font=(text.actual("family"), 12, "bold"),
            foreground="#1d4ed8",
            spacing1=12,
            spacing3=4,
        )
        self.answers.tag_configure("note", foreground="#b91c1c")
        self.state_ = "loading"  # then ready, answering, failed, over

    # ---- what the user does

    def _entered(self, event: tk.Event) -> str | None:
        if int(event.state) & 1:  # Shift: a new line
            return None
        if self.state_ == "ready":
            self._pressed()
        return "break"

    def _pressed(self) -> None:
        if self.state_ == "answering":
            self.engine.stop()
        elif self.state_ == "ready":
            self._ask()
        else:
            self.leave()

    def _ask(self) -> None:
        question = self.question.get("1.0", "end").strip()
        if not question:
            return
        self.question.delete("1.0", "end")
        self._write(f"{question}\n", "you")
        self._be("answering", "Stop", "Reading \N{HORIZONTAL ELLIPSIS}")
        self.engine.ask(question)

    def leave(self) -> None:
        """Hide the window, and close it when the engine has ended, which is in a moment."""
        self.state_ = "over"
        self.engine.quit()
        self.withdraw()

    # ---- events of the engine

    def _look(self) -> None:
        while not self.engine.events.empty():
            kind, what = self.engine.events.get()
            if self.state_ != "over":
                getattr(self, f"_on_{kind}")(what)
        if self.state_ == "over" and not self.engine.is_alive():
            self.destroy()
        else:
            self.after(LOOK_MS, self._look)

    def _on_loading(self, share: float) -> None:
        self.progress.configure(value=share)

    def _on_ready(self, what: str) -> None:
        self.progress.pack_forget()
        self._be("ready", "Send", what)

    def _on_text(self, text: str) -> None:
        self._write(text)

    def _on_stats(self, stats: gguf_spec.Stats) -> None:
        drafted = (
            f"{stats.acceptance:.0%} of {stats.n_drafted} drafted tokens accepted"
            if stats.n_drafted
            else "nothing drafted"
        )
        self._say(f"{stats.n_generated} tokens, {stats.tokens_per_s:,.0f} tok/s, {drafted}")

    def _on_answered(self, finish: str) -> None:
        self._write(
            {"cancelled": " [stopped]\n", "length": " [cut off]\n"}.get(finish, "\n"), "note"
        )
        self._be("ready", "Send")

    def _on_refused(self, why: str) -> None:
        self._write(f"{why}\n", "note")
        self._be("ready", "Send")

    def _on_failed(self, why: str) -> None:
        self.progress.pack_forget()
        self._write(f"{why}\n", "note")
        self._be("failed", "Close", "There is no model.")

    # ---- what is shown

    def _write(self, text: str, tag: str | None = None) -> None:
        follow = self.answers.yview()[1] > 0.99  # who has scrolled back reads on in peace
        self.answers.configure(state="normal")
        self.answers.insert("end", text, tag or ())
        self.answers.configure(state="disabled")
        if follow:
            self.answers.see("end")

    def _say(self, status: str) -> None:
        self.status.configure(text=status)

    def _be(self, state: str, button: str, status: str | None = None) -> None:
        self.state_ = state
        self.button.configure(text=button)
        self.question.focus_set()
        if status is not None:
            self._say(status)


if __name__ == "__main__":
    Window(sys.argv[1] if len(sys.argv) > 1 else "tales").mainloop()
