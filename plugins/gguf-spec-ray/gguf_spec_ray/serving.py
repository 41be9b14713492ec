"""Ray Serve application: replicas of the server, and an ingress that repeats lost requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gguf_spec.errors import InvalidOptionError
from gguf_spec.options import AUTO_PARALLEL_MAX
from gguf_spec.server import Settings

from .data import load_on_node

_SETTINGS = tuple(one.name for one in fields(Settings))
# Requests of other routes than completions that a replica takes beside its queue.
_OTHER_REQUESTS = 16
# The ingress is on the head node, whose loss ends every cluster: no other loss ends an answer.
_ON_THE_HEAD = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}


def check(option: str, value: object, allowed: str, ok: bool) -> None:
    """Raise the error of an option, unless its value is valid (`ok`)."""
    if not ok:
        raise InvalidOptionError(option, value, allowed)


class Replica:
    """Deployment with one loaded model and the application of the server."""

    def __init__(
        self, model: str | None, pull: bool, options: Mapping[str, Any], settings: Settings
    ) -> None:
        from gguf_spec.server import make_app

        self._llm = load_on_node(model, pull, options)
        self._app = make_app(self._llm, settings)

    async def respond(self, call: Any) -> AsyncIterator[Any]:
        """Yield the head and the body of the response to a request."""
        parts = call.run(self._app)
        try:
            async for part in parts:
                yield part
        finally:
            await parts.aclose()

    def check_health(self) -> None:
        """Raise if no request can be answered; Ray then replaces the replica."""
        if not self._app.worker.is_alive:
            raise RuntimeError("the worker threads of the server have ended")

    def __del__(self) -> None:
        """Free the memory. Ray calls this after the running requests."""
        if hasattr(self, "_app"):
            self._app.close()
        if hasattr(self, "_llm"):
            self._llm.close()


class IngressDeployment:
    """Deployment of the ingress."""

    def __init__(self, replicas: Any, settings: Settings) -> None:
        from .ingress import Ingress

        self._replicas = replicas.options(stream=True)
        self._ingress = Ingress(self._open, settings)

    async def __call__(self, request: Any) -> Any:
        """Answer one HTTP request."""
        return await self._ingress(request)

    def n_repeated(self) -> int:
        """Return the number of attempts that were repeated because a replica was lost."""
        return self._ingress.n_repeated

    async def _open(self, call: Any) -> AsyncIterator[Any]:
        from ray import exceptions
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        from gguf_spec.protocols.errors import ApiError

        from .ingress import AttemptLostError

        names = ("RayActorError", "NodeDiedError", "ObjectLostError", "WorkerCrashedError")
        lost = tuple(getattr(exceptions, name) for name in names)
        parts = self._replicas.respond.remote(call)
        try:
            async for part in parts:
                yield part
        except lost:
            raise AttemptLostError from None
        except BackPressureError:
            fact, headers = "Too many requests are waiting.", {"Retry-After": "5"}
            raise ApiError(fact, None, "queue_full", 429, headers) from None
        except DeploymentUnavailableError:
            raise ApiError("No replica could be started.", None, "no_replica", 503) from None
        finally:
            parts.cancel()


def application(
    model: str | Path | None = None,
    *,
    replicas: int | str = 1,
    num_cpus: float = 1,
    num_gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    ingresses: int = 1,
    drain: float = 60.0,
    pull: bool = False,
    settings: Settings | None = None,
    **options: Any,
) -> Any:
    """Return a Ray Serve application that serves a model, for `serve.run`.

    It has the routes of `gguf-spec serve`. Each replica loads the model once, in a process of its
    own. A request whose replica is lost is repeated by another one. The seed decides the text: the
    answer is the same on machines of the same kind and build, and a stream goes on where it was.

    Args:
        model: As for `gguf_spec.load`. Each node must have the file, unless `pull` is set.
        replicas: Number of replicas, or `auto`.
        num_cpus: CPUs of a replica; also its thread count, unless `threads` is given.
        num_gpus: GPUs of a replica.
        resources: Custom resources of a replica, to choose its nodes.
        autoscaling: Ray Serve's `autoscaling_config`, such as `{"min_replicas": 1,
            "max_replicas": 4}`; in place of `replicas`.
        ingresses: Number of processes that pass the requests on. They run on the head node.
        drain: Seconds that a replica has to finish its requests before it is removed; those that
            remain are repeated by another one.
        pull: Download the model on a node that lacks it.
        settings: Settings of the server. `queue` holds for each replica. Host and port are those of
            Ray Serve, but requests are checked as if the server listened at `settings.host`.
        options: Other arguments of `gguf_spec.load`, such as `parallel`, the requests that a
            replica runs at once.

    Returns:
        A `ray.serve.Application`.

    Raises:
        InvalidOptionError: An option has a value that is not allowed.
    """
    from ray import serve

    settings = settings or Settings()
    check("num_cpus", num_cpus, "above 0", num_cpus > 0)
    n = options.get("parallel", 1)
    check(
        "parallel",
        n,
        "a whole number above 0, or auto",
        n == "auto" or (isinstance(n, int) and n > 0),
    )
    check("drain", drain, "seconds, 0 or more", drain >= 0)
    if autoscaling is not None:
        check("replicas", replicas, "omitted if there is autoscaling", replicas == 1)
        scale: dict[str, Any] = {"autoscaling_config": dict(autoscaling)}
    else:
        valid = replicas == "auto" or (isinstance(replicas, int) and replicas > 0)
        check("replicas", replicas, "a whole number above 0, or auto", valid)
        scale = {"num_replicas": replicas}
    actor: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    if resources:
        actor["resources"] = dict(resources)
    most = AUTO_PARALLEL_MAX if n == "auto" else int(n)
    deployed = serve.deployment(
        Replica,
        name="gguf-spec",
        ray_actor_options=actor,
        max_ongoing_requests=settings.queue + most + _OTHER_REQUESTS,
        graceful_shutdown_timeout_s=drain,
        **scale,
    ).bind(None if model is None else str(model), pull, options, settings)
    return serve.deployment(
        IngressDeployment,
        name="gguf-spec-ingress",
        ray_actor_options=_ON_THE_HEAD,
        num_replicas=ingresses,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=drain,
    ).bind(deployed, settings)


def build(args: Mapping[str, Any]) -> Any:
    """Return the application for Ray Serve's command and its YAML files.

        serve run gguf_spec_ray:build model=smollm2 replicas=2 num_cpus=2

    Args:
        args: Arguments of `application` and fields of `Settings` by name. Texts are read as YAML
            scalars, because the command line of Ray has texts only.
    """
    import yaml

    given = {
        name: yaml.safe_load(value) if isinstance(value, str) and name != "model" else value
        for name, value in args.items()
    }
    settings = {name: given.pop(name) for name in _SETTINGS if name in given}
    return application(**given, settings=Settings(**settings))
