"""Descriptions of JSON values: each makes the check of a part of a request, and its OpenAPI schema.

A reader returns the value in the form that the server uses. Its error names the place of the value
in the request, such as `messages[0].content`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from .errors import ApiError, invalid_value
from .fields import note, whole

Read = Callable[[Any, str], Any]
# Values of unknown fields that ask for nothing.
NOTHING: tuple[Any, ...] = (None, "", [], {}, False)
ID_LENGTH_MAX = 256  # characters of the id of a tool call or of an item


class Shape(NamedTuple):
    """Description of a JSON value.

    Attributes:
        read: Returns the value for the server, from the value and its place. None leaves a field
            of an object out. Raises `ApiError` for an invalid value.
        is_hidden: Whether the OpenAPI description leaves a field with it out.
    """

    schema: dict[str, Any]
    read: Read
    is_hidden: bool = False

    @property
    def hidden(self) -> Shape:
        return self._replace(is_hidden=True)

    def to(self, make: Callable[[Any], Any]) -> Shape:
        """Return the description of the same values, which are read as what `make` returns."""
        return self._replace(read=lambda value, at: make(self.read(value, at)))

    def as_given(self) -> Shape:
        """Return the description of the same values, which are checked and read as they are."""
        return self._replace(read=lambda value, at: (self.read(value, at), value)[1])


# ---- JSON schemas


# In the fields of an object a text is the only value of a field, and a dictionary the schema of a
# value that is not checked here. A name that ends with `?` is that of an optional field.
Fields = dict[str, Any]


def _shape(one: Shape | dict[str, Any] | str) -> Shape:
    if isinstance(one, Shape):
        return one
    return given({"const": one} if isinstance(one, str) else one)


def _shapes(fields: Fields) -> dict[str, tuple[Shape, bool]]:
    """Return name -> description, and whether the field must be there."""
    return {name.rstrip("?"): (_shape(one), not name.endswith("?")) for name, one in fields.items()}


def object_of(fields: Fields, more: bool = False) -> dict[str, Any]:
    """Return the schema of an object; `more` allows other properties."""
    shapes = _shapes(fields).items()
    return {
        "type": "object",
        "properties": {name: one.schema for name, (one, _) in shapes if not one.is_hidden},
        "required": [name for name, (_, is_needed) in shapes if is_needed],
        "additionalProperties": more,
    }


def array_of(
    items: Shape | dict[str, Any], most: int | None = None, least: int = 0
) -> dict[str, Any]:
    return {"type": "array", "items": _shape(items).schema, "minItems": least} | (
        {} if most is None else {"maxItems": most}
    )


# ---- single values


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def unsupported(at: str, fact: str = "is not supported.") -> ApiError:
    return ApiError(f"{at} {fact}", at, "unsupported_parameter")


def checked(schema: dict[str, Any], is_valid: Callable[[Any], bool], fact: str) -> Shape:
    """Return the description of values that a function accepts.

    `fact` is the error for others, after their place, such as `must be a string.`
    """
    is_whole = schema.get("type") == "integer"

    def read(value: Any, at: str) -> Any:
        value = whole(value) if is_whole else value
        if not is_valid(value):
            raise invalid_value(at, fact)
        return value

    return Shape(schema, read)


COUNT, NUMBER = {"type": "integer", "minimum": 0}, {"type": "number"}
TEXT = checked({"type": "string"}, lambda value: isinstance(value, str), "must be a string.")
# False for null.
FLAG = checked(
    {"type": "boolean"},
    lambda value: value is None or isinstance(value, bool),
    "must be true or false.",
).to(bool)
# Id of a tool call or of an item.
ID = checked(
    {"type": "string", "minLength": 1, "maxLength": ID_LENGTH_MAX},
    lambda value: isinstance(value, str) and 0 < len(value) <= ID_LENGTH_MAX,
    f"must be a string of at most {ID_LENGTH_MAX} characters.",
)
# Schema of an answer or of the arguments of a function.
JSON_SCHEMA = checked(
    {"type": "object"}, lambda value: isinstance(value, dict), "must be a JSON schema."
)


def whole_number(least: int, most: int) -> Shape:
    return checked(
        {"type": "integer", "minimum": least, "maximum": most},
        lambda value: is_count(value) and least <= value <= most,
        f"must be a whole number from {least} to {most}.",
    )


def one_of(values: Collection[Any], fact: str = "") -> Shape:
    fact = fact or f"must be one of {', '.join(values)}."
    return checked({"enum": [*values]}, lambda value: value in [*values], fact)


def given(schema: dict[str, Any]) -> Shape:
    """Return the description of a value that is not checked here."""
    is_whole = schema.get("type") == "integer"
    return Shape(schema, lambda value, _: whole(value) if is_whole else value)


def unread(schema: dict[str, Any]) -> Shape:
    """Return the description of a field without effect."""
    return Shape(schema, lambda *_: None)


def never(fact: str, *but: Any) -> Shape:
    """Return the description of a field that must not be there, but for some values."""

    def read(value: Any, at: str) -> None:
        if value not in but:
            raise invalid_value(at, fact)

    return Shape({"enum": [None, *but]}, read)


def or_empty(shape: Shape, empty: Any = None) -> Shape:
    """Return a description with a value for all that is empty, zero or false."""
    return Shape(shape.schema, lambda value, at: shape.read(value, at) if value else empty)


# ---- arrays, objects and alternatives


def array(item: Shape, fact: str, least: int = 0, most: int | None = None) -> Shape:
    """Return the description of an array; `fact` is the error for other values and lengths."""
    read_item = item.read

    def read(value: Any, at: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= (most or len(value)):
            raise invalid_value(at, fact)
        return [read_item(one, f"{at}[{i}]") for i, one in enumerate(value)]

    return Shape(array_of(item, most, least), read)


def obj(fields: Fields, *, ignored: Iterable[str] = ()) -> Shape:
    """Return the description of an object; fields that are null count as left out.

    Other fields are taken and noted, unless they are empty or one of `ignored`.
    """
    reads = [(name, needed, one.read) for name, (one, needed) in _shapes(fields).items()]
    known = {*(name for name, *_ in reads), *ignored}

    def read(value: Any, at: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise invalid_value(at, "must be an object.")
        start = f"{at}." if at else ""
        if not value.keys() <= known:
            for name, one in value.items():
                if name not in known and one not in NOTHING:
                    note(f"{start}{name[:100]}")
        found = {}
        for name, is_needed, read_field in reads:
            one = value.get(name)
            if one is not None or is_needed:
                one = read_field(one, start + name)
                if one is not None:
                    found[name] = one
                elif is_needed:
                    raise invalid_value(start + name, "is missing.")
        return found

    return Shape(object_of(fields, more=True), read)


def tagged(
    key: str,
    variants: Mapping[Any, Shape],
    fact: str,
    code: str = "unsupported_parameter",
    fact_of_object: str = "",
    at_key: bool = True,
) -> Shape:
    """Return the description of objects of several types.

    Args:
        key: Field with the type.
        fact: Error for another type, after its place; `code` is its code.
        fact_of_object: Error for values that are no objects; by default, `fact`.
        at_key: Whether the error names the field with the type, not the object.
    """

    def read(value: Any, at: str) -> Any:
        if not isinstance(value, dict) and fact_of_object:
            raise invalid_value(at, fact_of_object)
        kind = value.get(key) if isinstance(value, dict) else []
        if not isinstance(kind, (str, type(None))) or kind not in variants:
            at = f"{at}.{key}" if at_key else at
            raise ApiError(f"{at} {fact}", at, code)
        return variants[kind].read(value, at)

    shown = [one.schema for one in variants.values() if not one.is_hidden]
    return Shape(shown[0] if len(shown) == 1 else {"anyOf": shown}, read)


def text_or(some: Shape, text: Shape = TEXT) -> Shape:
    """Return the description of a text, which is read by `text`, or another value."""
    return Shape(
        {"anyOf": [text.schema, some.schema]},
        lambda value, at: (text if isinstance(value, str) else some).read(value, at),
    )


def _text_of(value: dict[str, Any], at: str) -> str:
    """Return the text of one of llama-server's objects: `prompt_string`, or parts of `content`."""
    if value.get("multimodal_data"):
        raise unsupported(f"{at}.multimodal_data", "is not supported: use chats.")
    if "content" not in value:
        return str(TEXT.read(value.get("prompt_string"), f"{at}.prompt_string"))
    parts, at = value["content"], f"{at}.content"
    if not isinstance(parts, list) or not all(isinstance(one, dict) for one in parts):
        raise invalid_value(at, "must be an array of parts.")
    for i, one in enumerate(parts):
        if one.get("type") != "text":
            raise unsupported(f"{at}[{i}]", "is no text.")
    return "".join(TEXT.read(one.get("text"), f"{at}[{i}].text") for i, one in enumerate(parts))


def texts(most: int, fact: str, ids: bool = True, mixed: bool = False) -> Shape:
    """Return the description of a text, or of an array of texts, which is read as a list.

    Args:
        fact: Error for another number, after their place.
        ids: Whether arrays of token ids and llama-server's objects count as texts.
        mixed: Whether texts may be among the token ids of one array, as in llama-server.
    """
    piece = {"anyOf": [TEXT.schema, COUNT]} if mixed else COUNT
    part = object_of({"type": "text", "text": TEXT})
    objects = object_of({"prompt_string": TEXT}), object_of({"content": array_of(part)})
    shapes: list[Any] = [TEXT, array_of(piece, least=1), *objects] if ids else [TEXT]
    forms = "a text, token ids, an object, or an array of these"
    forms = forms if ids else "a string or an array of strings"
    form = "a text, token ids or an object" if ids else "a string"

    def is_piece(value: Any) -> bool:
        return is_count(value) or (mixed and isinstance(value, str))

    def is_one_of_ids(value: Any) -> bool:
        """Return whether an array is one text: token ids, or a mixture with at least one."""
        return ids and any(map(is_count, value)) and (mixed or is_count(value[0]))

    def check(value: Any, at: str) -> None:
        if ids and isinstance(value, list):
            for i, one in enumerate(value):
                if not is_piece(one):
                    fact = "must be a token id" + (" or a text" if mixed else "")
                    raise invalid_value(f"{at}[{i}]", f"{fact}.")
        elif not (isinstance(value, str) or (ids and isinstance(value, dict))):
            raise invalid_value(at, f"must be {forms if at[-1] != ']' else form}.")

    def read(value: Any, at: str) -> list[str | list[Any]]:
        is_one = not isinstance(value, list) or is_one_of_ids(value)
        values = [value] if is_one else value
        places = [at if is_one else f"{at}[{i}]" for i in range(len(values))]
        if not 0 < len(values) <= most:
            raise invalid_value(at, fact)
        for item, place in zip(values, places, strict=True):
            check(item, place)
        both = zip(values, places, strict=True)
        return [_text_of(item, place) if isinstance(item, dict) else item for item, place in both]

    arrays = [array_of(shape, most, 1) for shape in shapes]
    return Shape({"anyOf": [*(_shape(shape).schema for shape in shapes), *arrays]}, read)
