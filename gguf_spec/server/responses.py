"""Stored responses of the Responses API, and the route of their items."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..protocols.errors import ApiError, invalid_value
from ..protocols.replies import json_parts
from ..protocols.responses import FindItem, Item
from .streams import JsonAnswer

_MOST_ITEMS = 100  # of one page of a list


class StoredResponse(NamedTuple):
    """A response object, all items of its input, and the size of both as JSON in bytes."""

    response: dict[str, Any]
    items: Sequence[Item]
    n_bytes: int

    @property
    def conversation(self) -> list[Item]:
        """The items of its input and of its output."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """Responses by id, the last ones used. Calls of several threads take turns.

    `most_bytes` is the size of all responses with their items, as JSON. The error for an id that is
    not there, or not any more, names the field `param`.
    """

    def __init__(self, most: int = 1000, most_bytes: int = 64 << 20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.RLock()
        self.open: set[str] = set()  # ids of responses that have not ended

    def add(self, response: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a response; one that is larger than the store is not kept."""
        n_bytes = sum(map(len, json_parts([response, items], json.dumps)))
        if n_bytes > self._most_bytes:
            return
        with self._lock:
            self._stored[response["id"]] = StoredResponse(response, items, n_bytes)
            self._n_bytes += n_bytes
            while len(self._stored) > self._most or self._n_bytes > self._most_bytes:
                self._n_bytes -= self._stored.popitem(last=False)[1].n_bytes

    def has(self, id_: str) -> bool:
        """Return whether there is a response with this id, complete or not."""
        with self._lock:
            return id_ in self._stored or id_ in self.open

    def get(self, id_: str, param: str) -> StoredResponse:
        """Return a response and mark it as used."""
        if id_ in self.open:
            fact = f"The response {id_!r} has not ended."
            raise ApiError(fact, param, "response_in_progress", 409)
        with self._lock:
            if id_ not in self._stored:
                raise ApiError(
                    f"There is no response {id_[:100]!r}: the last {self._most} responses that "
                    "were used are kept in memory until the server ends, and none that was sent "
                    "with store: false. Send the whole conversation as input.",
                    param,
                    "response_not_found",
                    404,
                )
            self._stored.move_to_end(id_)
            return self._stored[id_]

    def conversation(self, id_: str, param: str) -> list[Item]:
        return self.get(id_, param).conversation

    def remove(self, id_: str, param: str) -> None:
        with self._lock:
            self.get(id_, param)
            self.discard(id_)

    def discard(self, id_: str) -> None:
        """Forget a response, if it is there."""
        with self._lock:
            if stored := self._stored.pop(id_, None):
                self._n_bytes -= stored.n_bytes

    def finder(self) -> FindItem:
        """Return a function that looks up items of the stored responses by their ids."""

        @cache
        def items() -> dict[str, Item]:
            with self._lock:
                kept = [*self._stored.values()]
            return {item["id"]: item for stored in kept for item in stored.conversation}

        return lambda id_: items().get(id_)


def items_route(store: ResponseStore) -> Route:
    async def list_items(request: Request) -> Response:
        query = request.query_params
        items = list(store.get(request.path_params["id"], "id").items)
        order, limit = query.get("order", "desc"), query.get("limit", "20")
        if order not in ("asc", "desc"):
            raise invalid_value("order", "must be asc or desc.")
        if limit not in map(str, range(1, _MOST_ITEMS + 1)):
            raise invalid_value("limit", f"must be a whole number from 1 to {_MOST_ITEMS}.")
        items = items if order == "asc" else items[::-1]
        ids = [item["id"] for item in items]
        if after := query.get("after"):
            if after not in ids:
                raise invalid_value("after", "must be the id of an item of the list.")
            items = items[ids.index(after) + 1 :]
        page = items[: int(limit)]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        answer = {"object": "list", "data": page, "first_id": first, "last_id": last}
        return await asyncio.to_thread(JsonAnswer, answer | {"has_more": len(page) < len(items)})

    return Route("/v1/responses/{id}/input_items", list_items, methods=["GET"])
