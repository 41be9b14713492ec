"""Stored responses: a bounded number in memory, and the routes that read and delete them."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .errors import ApiError, invalid_value

Item = dict[str, Any]
# Returns the item of a stored response with an id, or None.
FindItem = Callable[[str], Item | None]
MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20  # of all responses with their items, as JSON


@dataclass(frozen=True)
class StoredResponse:
    """A response with the items that it answered.

    Attributes:
        response: The response object.
        items: All items of its input, those of earlier responses included.
        n_bytes: Size of both as JSON.
    """

    response: dict[str, Any]
    items: Sequence[Item]
    n_bytes: int

    @property
    def conversation(self) -> list[Item]:
        """The items of its input and of its output."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """Responses by id. Calls of several threads take turns."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        """Create an empty store.

        Args:
            most: Maximum number of responses.
            most_bytes: Maximum size of all responses in bytes.
        """
        self._most, self._most_bytes = most, most_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def add(self, response: dict[str, Any], items: Sequence[Item]) -> None:
        """Store a response; one that is larger than the store is not kept."""
        n_bytes = len(json.dumps([response, items]))
        if n_bytes > self._most_bytes:
            return
        with self._lock:
            self._stored[response["id"]] = StoredResponse(response, items, n_bytes)
            self._n_bytes += n_bytes
            while len(self._stored) > self._most or self._n_bytes > self._most_bytes:
                self._n_bytes -= self._stored.popitem(last=False)[1].n_bytes

    def get(self, id_: str, param: str) -> StoredResponse:
        """Return a response and mark it as used.

        Args:
            id_: Its id.
            param: Field of the request with the id.

        Raises:
            ApiError: No response has this id, or it was removed to make room.
        """
        with self._lock:
            if id_ not in self._stored:
                raise self._missing(id_, param)
            self._stored.move_to_end(id_)
            return self._stored[id_]

    def remove(self, id_: str, param: str) -> None:
        """Remove a response.

        Raises:
            ApiError: No response has this id.
        """
        with self._lock:
            if id_ not in self._stored:
                raise self._missing(id_, param)
            self._n_bytes -= self._stored.pop(id_).n_bytes

    def finder(self) -> FindItem:
        """Return a function that looks up items of the stored responses by their ids."""
        items: dict[str, Item] = {}

        def find(id_: str) -> Item | None:
            if not items:
                with self._lock:
                    kept = [*self._stored.values()]
                for stored in kept:
                    items.update((item["id"], item) for item in stored.conversation)
            return items.get(id_)

        return find

    def _missing(self, id_: str, param: str) -> ApiError:
        return ApiError(
            f"There is no response {id_[:100]!r}: the last {self._most} responses that were used "
            "are kept in memory until the server ends, and none that was sent with store: false. "
            "Send the whole conversation as input.",
            param,
            "response_not_found",
            404,
        )


_PATH = "/v1/responses/{id}"
_MOST_ITEMS = 100  # of one page of a list


class ResponseRoutes:
    """Routes for stored responses."""

    def __init__(self, store: ResponseStore) -> None:
        """Create the routes.

        Args:
            store: The stored responses.
        """
        self._store = store
        self.routes = [
            Route(_PATH, self._get, methods=["GET"]),
            Route(_PATH, self._delete, methods=["DELETE"]),
            Route(f"{_PATH}/input_items", self._items, methods=["GET"]),
        ]

    async def _get(self, request: Request) -> Response:
        if request.query_params.get("stream", "false") != "false":
            raise invalid_value("stream", "must be false: a stored response is sent whole.")
        return JSONResponse(self._store.get(request.path_params["id"], "id").response)

    async def _delete(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        self._store.remove(id_, "id")
        return JSONResponse({"id": id_, "object": "response", "deleted": True})

    async def _items(self, request: Request) -> Response:
        query = request.query_params
        items = list(self._store.get(request.path_params["id"], "id").items)
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid_value("order", "must be asc or desc.")
        if order == "desc":
            items.reverse()
        limit = query.get("limit", "20")
        if limit not in map(str, range(1, _MOST_ITEMS + 1)):
            raise invalid_value("limit", f"must be a whole number from 1 to {_MOST_ITEMS}.")
        ids = [item["id"] for item in items]
        if after := query.get("after"):
            if after not in ids:
                raise invalid_value("after", "must be the id of an item of the list.")
            items = items[ids.index(after) + 1 :]
        page = items[: int(limit)]
        return JSONResponse(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(page) < len(items),
            }
        )
