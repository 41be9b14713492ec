"""Tasks of requests: functions of a loaded model that run in the order of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from .access import JOB
from .errors import ApiError, ending, gone, too_slow
from .events import Done, ErrorEvent, Why
from .jobs import Job
from .model_pool import ServedModel
from .settings import Settings
from .worker import Worker

if TYPE_CHECKING:
    from ..runtime.llm import LLM

# A task gets the model, and a function that it calls often: it raises if the task is cancelled.
Task = Callable[["LLM", Callable[..., None]], Any]


class TaskRunner:
    """Runs tasks through the worker. A client that disconnects cancels its task."""

    def __init__(self, worker: Worker, settings: Settings, is_ending: Callable[[], bool]) -> None:
        self._worker, self._settings, self._is_ending = worker, settings, is_ending

    async def run(
        self, request: Request, model: ServedModel, task: Task, names: dict[str, str]
    ) -> Any:
        """Run a task and return its result.

        Args:
            request: The request; its body must have been read.
            model: The model.
            task: The task.
            names: Option name -> field name, for errors.

        Raises:
            ApiError: The task failed, or was cancelled.
        """

        def check(*_: object) -> None:
            if job.why:
                raise self._reason(job.why)

        job = Job(model, lambda llm: task(llm, check), names)
        request.scope[JOB] = job
        self._worker.submit(job)
        watch = asyncio.create_task(
            cancel_on_disconnect(request, job, self._worker, self._is_ending)
        )
        timer = asyncio.get_running_loop().call_later(
            self._settings.timeout, self._worker.cancel, job, "timeout"
        )
        try:
            event = await job.events.get()
        finally:
            watch.cancel()
            timer.cancel()
            self._worker.cancel(job, "gone")  # no effect if it is done
        if isinstance(event, ErrorEvent):
            raise event.refusal
        assert isinstance(event, Done)
        return event.value

    def _reason(self, why: Why) -> ApiError:
        if why == "timeout":
            return too_slow(self._settings.timeout)
        return gone() if why == "gone" else ending()


async def cancel_on_disconnect(
    request: Request, job: Job, worker: Worker, is_ending: Callable[[], bool]
) -> None:
    """Wait until the client of a request disconnects, and cancel its job.

    Args:
        request: The request; its body must have been read.
        job: The job.
        worker: The worker that runs it.
        is_ending: Returns whether the server shuts down; some versions of uvicorn then send a
            disconnect to every request.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if not is_ending():
        worker.cancel(job, "gone")
