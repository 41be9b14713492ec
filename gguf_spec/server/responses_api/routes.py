"""Routes for stored responses: read, delete, and list the items of the input."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..errors import bad
from .store import ResponseStore

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
            raise bad("stream", "must be false: a stored response is sent whole.")
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
            raise bad("order", "must be asc or desc.")
        if order == "desc":
            items.reverse()
        limit = query.get("limit", "20")
        if limit not in map(str, range(1, _MOST_ITEMS + 1)):
            raise bad("limit", f"must be a whole number from 1 to {_MOST_ITEMS}.")
        ids = [item["id"] for item in items]
        if after := query.get("after"):
            if after not in ids:
                raise bad("after", "must be the id of an item of the list.")
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
