"""textual_app.py in Textual's pilot: an answer, a stopped one, and the end."""

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("textual")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "examples"))


async def until(pilot, condition):
    for _ in range(400):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("it did not happen in time")


def shown(app):
    from textual.widgets import Label, Static

    answers = [str(one.render()) for one in app.query("#answers Static").results(Static)]
    return str(app.query_one("#status", Label).render()), answers


def test_a_conversation():
    from textual.widgets import Input
    from textual_app import ChatApp

    async def run():
        app = ChatApp("tales")
        async with app.run_test() as pilot:
            field = app.query_one(Input)
            await until(pilot, lambda: not field.disabled)
            assert "tokens of context" in shown(app)[0]
            await pilot.press(*"[b]Hi", "enter")
            await until(pilot, lambda: app._answer and not app._answer.is_running)
            status, (question, answer) = shown(app)
            assert question == "[b]Hi"
            assert answer.strip()
            assert "tok/s" in status
            await pilot.press(*"More", "enter")
            await until(pilot, lambda: len(shown(app)[1]) == 4 and shown(app)[1][3])
            await pilot.press("escape")
            await until(pilot, lambda: not app._answer.is_running)
            await pilot.press("ctrl+q")
        assert app._llm._is_closed

    asyncio.run(run())


def test_a_model_that_is_not_there():
    from textual_app import ChatApp

    async def run():
        app = ChatApp("no-such-model")
        async with app.run_test() as pilot:
            await until(
                pilot, lambda: "no-such-model" in shown(app)[0] and "Loading" not in shown(app)[0]
            )

    asyncio.run(run())
