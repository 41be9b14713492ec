"""A service of your own around AsyncLLM: one route that streams, one that returns JSON of a schema.

    pip install fastapi uvicorn
    python scripts/examples/fastapi_app.py [MODEL]
    curl -N localhost:8000/tell -d '{"prompt": "The fox said"}' -H 'Content-Type: application/json'
    curl localhost:8000/name -d '{"prompt": "A fox, as JSON."}' -H 'Content-Type: application/json'

The model is loaded once, when the service starts. Four requests share its passes; more wait in order of arrival. When a client goes away, its
generation ends within one round.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from gguf_spec import AsyncLLM, Sampling
from gguf_spec.errors import GgufSpecError


class Prompt(BaseModel):
    """Body of a request."""

    prompt: str = Field(min_length=1, max_length=8000)
    max_tokens: int = Field(default=200, ge=1, le=1000)
    seed: int | None = None


class Animal(BaseModel):
    """What `/name` answers."""

    name: str = Field(min_length=1, max_length=30)
    age: int = Field(ge=0, le=99)


def make_app(model: str = "tales", parallel: int = 4, **options: object) -> FastAPI:
    """Return the application; options are those of `gguf_spec.load`."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with await AsyncLLM.load(model, parallel=parallel, **options) as llm:
            app.state.llm = llm
            yield

    app = FastAPI(title="Tales", lifespan=lifespan)

    @app.post("/tell")
    async def tell(asked: Prompt, request: Request) -> StreamingResponse:
        sampling = Sampling(max_tokens=asked.max_tokens, seed=asked.seed)
        stream = request.app.state.llm.stream(asked.prompt, sampling)
        try:
            first = await anext(stream)  # errors of the prompt are raised here
        except GgufSpecError as error:
            raise HTTPException(422, f"{error} {error.hint}") from error

        async def texts() -> AsyncIterator[str]:
            async with stream:  # left when the client goes away
                yield first.text
                async for chunk in stream:
                    yield chunk.text

        return StreamingResponse(texts(), media_type="text/plain; charset=utf-8")

    @app.post("/name")
    async def name(asked: Prompt, request: Request) -> Animal:
        schema = Animal.model_json_schema()
        sampling = Sampling(max_tokens=asked.max_tokens, seed=asked.seed, json_schema=schema)
        try:
            answer = await request.app.state.llm.generate(asked.prompt, sampling)
        except GgufSpecError as error:
            raise HTTPException(422, f"{error} {error.hint}") from error
        if answer.finish_reason != "stop":
            raise HTTPException(503, "The answer is not complete: raise max_tokens.")
        return Animal.model_validate_json(answer.text)

    return app


if __name__ == "__main__":
    uvicorn.run(make_app(sys.argv[1] if len(sys.argv) > 1 else "tales"), port=8000)
