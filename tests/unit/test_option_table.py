"""Every surface has the ranges and defaults of the table in gguf_spec/options.py."""

import dataclasses
import json
import math

import click
import pytest

from gguf_spec.cli import cli
from gguf_spec.cli.options import to_sampling, to_speculation
from gguf_spec.errors import InvalidOptionError
from gguf_spec.options import LOADING, PARAMETERS, SAMPLING, SPECULATION, Sampling, Speculation
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.openai import read_chat, read_text
from gguf_spec.server.openapi import describe

OWNERS = {Sampling: SAMPLING, Speculation: SPECULATION}
TABLE = [(owner, name, rule) for owner, rules in OWNERS.items() for name, rule in rules.items()]
# Defaults that are not those of the table, as OpenAI's API has others.
OWN_DEFAULTS = {"read_text": {"max_tokens": 16}, "read_chat": {"max_tokens": None}}


def outside(rule):
    """The values that are just outside of a rule, or of another type."""
    if rule.type == "any":
        return []
    if rule.shape == "sequence":
        items = [one for one in outside(rule._replace(shape="one")) if one is not None]
        many = [["a"] * (rule.items_max + 1)] if rule.items_max else []
        return [*([one] for one in items), *many, *([[""]] if rule.type == "string" else [])]
    if rule.shape == "mapping":
        return [{5: one} for one in outside(rule._replace(shape="one", optional=False))] + [[1]]
    if rule.type == "boolean":
        return [1, "true"]
    if rule.type == "string":
        return [5, *(["other", ""] if rule.choices else [])]
    values = [True, "1"]
    for limit, up in ((rule.least, -1), (rule.most, 1)):
        if limit is not None:
            inside = rule.above and up < 0
            step = limit + up if rule.type == "integer" else math.nextafter(limit, up * math.inf)
            values.append(limit if inside else step)
    return values + ([1.5] if rule.type == "integer" else [math.nan, math.inf])


def inside(rule):
    """The values at the limits of a rule."""
    if rule.choices:
        return list(rule.choices)
    if rule.type == "boolean":
        return [True, False]
    low = math.nextafter(rule.least, math.inf) if rule.above else rule.least
    return [one for one in (low, rule.most) if one is not None]


REFUSED = [(owner, name, outside(rule)) for owner, name, rule in TABLE if outside(rule)]
# For strict, True needs the rule coupled, which is the default.
TAKEN = [
    (owner, name, inside(rule)) for owner, name, rule in TABLE
    if rule.shape == "one" and (rule.type not in ("any", "string") or rule.choices)
]  # fmt: skip


def test_the_table_has_every_field():
    for owner, rules in OWNERS.items():
        assert set(rules) == {field.name for field in dataclasses.fields(owner)}


def test_values_are_found_for_nearly_every_option():
    assert {name for _, name, _ in REFUSED} == {name for _, name, _ in TABLE} - {"json_schema"}


@pytest.mark.parametrize(("owner", "name", "values"), REFUSED)
def test_python_refuses(owner, name, values):
    for value in values:
        with pytest.raises(InvalidOptionError) as caught:
            owner(**{name: value})
        assert caught.value.option == name
        if not isinstance(value, dict):
            assert OWNERS[owner][name].allowed in str(caught.value)


@pytest.mark.parametrize(("owner", "name", "values"), TAKEN)
def test_python_takes(owner, name, values):
    for value in values:
        assert getattr(owner(**{name: value}), name) == value


ARRAYS = {"stop_tokens": "stop_token_ids", "dry_sequence_breakers": "dry_sequence_breakers"}


def bodies(owner, name, value):
    """Return a request with an option, for each route, and the name of the field there."""
    if owner is Speculation:
        for read in (read_chat, read_text):
            yield read, {"speculation": {name: value}}, f"speculation.{name}"
    elif name == "logit_bias":
        value = (
            {str(token): bias for token, bias in value.items()}
            if isinstance(value, dict)
            else value
        )
        yield from ((read, {name: value}, name) for read in (read_chat, read_text))
    elif name in ARRAYS:
        yield from ((read, {ARRAYS[name]: value}, ARRAYS[name]) for read in (read_chat, read_text))
    elif name == "stop":
        yield from ((read, {name: value}, name) for read in (read_chat, read_text))
    elif name == "logprobs":  # of a chat, whether; and how many are top_logprobs
        yield read_text, {name: value}, name
        yield read_chat, {name: True, "top_logprobs": value}, "top_logprobs"
    elif OWNERS[owner][name].in_requests:
        yield from ((read, {name: value}, name) for read in (read_chat, read_text))
        if name == "max_tokens":
            yield read_chat, {"max_completion_tokens": value}, "max_completion_tokens"


def read(reader, body):
    needed = (
        {"messages": [{"role": "user", "content": "x"}]} if reader is read_chat else {"prompt": "x"}
    )
    return reader(needed | body, Speculation(), None)


def in_requests(table):
    found = [one for one in table if [*bodies(one[0], one[1], None)]]
    assert {one[1] for one in table} - {one[1] for one in found} <= {"overflow"}
    return found


@pytest.mark.parametrize(("owner", "name", "values"), in_requests(REFUSED))
def test_requests_refuse(owner, name, values):
    for value in values:
        if (not isinstance(value, bool) and value in MEANT.get(name, ())) or (
            name == "stop" and "" in value
        ):
            continue  # has a meaning in requests
        for reader, body, field in bodies(owner, name, value):
            if field == "logprobs" and value is True:
                continue  # of a text: as in a chat, without alternatives
            with pytest.raises(ApiError) as caught:
                read(reader, body)
            assert (caught.value.status, caught.value.error["param"]) == (400, field), value


@pytest.mark.parametrize(("owner", "name", "values"), in_requests(TAKEN))
def test_requests_take(owner, name, values):
    for value in values:
        wanted = min(value, 20) if name == "logprobs" else value
        for reader, body, _ in bodies(owner, name, wanted):
            request = read(reader, body)
            options = request.speculation if owner is Speculation else request.sampling
            assert getattr(options, name) == wanted


def test_the_defaults_of_requests():
    for reader in (read_chat, read_text):
        request = read(reader, {})
        own = OWN_DEFAULTS[reader.__name__]
        for name in SAMPLING:
            assert getattr(request.sampling, name) == own.get(name, getattr(Sampling(), name)), name
        assert request.speculation is None
    assert read(read_text, {"speculation": {}}).speculation == Speculation()


# Values that have a meaning in requests only, as for other servers, with the one of Sampling.
MEANT = {
    "max_tokens": {-1: None},
    "top_k": {-1: 0},
    "seed": {-1: None},
    "temperature": {-5e-324: 0, -1: 0},
    "top_p": {0: 1e-9},
    "typical_p": {0: 1e-9},
}
# What the description of these has besides, or in place of, the rule.
LEAST = {"max_tokens": -1, "top_k": -1, "seed": -1, "top_p": 0, "typical_p": 0}


@pytest.mark.parametrize("name", MEANT)
def test_values_of_other_servers(name):
    for value, wanted in MEANT[name].items():
        for reader, body, _ in bodies(Sampling, name, value):
            assert getattr(read(reader, body).sampling, name) == wanted


def schemas(owner, name, rule):
    """The schemas of an option in the description of the server."""
    for path, route in describe(("m",), False)["paths"].items():
        if path not in ("/v1/chat/completions", "/v1/completions"):
            continue
        body = route["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        if owner is Speculation:
            yield body["speculation"]["anyOf"][1]["properties"][name]
        elif rule.in_requests:
            yield body[name]
        elif name == "logit_bias":
            yield body[name]["additionalProperties"]
        elif name == "logprobs":
            yield body["top_logprobs" if "chat" in path else name] | {"maximum": rule.most}


@pytest.mark.parametrize(("owner", "name", "rule"), TABLE)
def test_the_description(owner, name, rule):
    found = list(schemas(owner, name, rule))
    assert len(found) == (
        2 if owner is Speculation or rule.in_requests or name in ("logit_bias", "logprobs") else 0
    )
    for schema in found:
        default = schema.get("default")
        limits = {key: value for key, value in schema.items() if key != "default"}
        wanted = dict(rule.schema)
        if name in LEAST:
            wanted.pop("exclusiveMinimum", None)
            wanted["minimum"] = LEAST[name]
        assert limits == wanted
        assert default == (
            None
            if name in ("max_tokens", "logprobs", "logit_bias") or owner is Speculation
            else getattr(owner(), name)
        )
        if rule.least is not None:
            is_above = rule.above and name not in LEAST
            least = LEAST.get(name, rule.least)
            assert schema["exclusiveMinimum" if is_above else "minimum"] == least
        if rule.most is not None:
            assert schema["maximum"] == rule.most


# ---- the command line


def parsed(command, *args):
    """Return the options of a command line, with the context in which they are read."""
    context = command.make_context(command.name, ["-m", "tales", *args])
    with context:
        return to_sampling(context.params), to_speculation(context.params)


def option(name):
    """The option of `generate` for a field; one that means False is named otherwise."""
    other = {
        "stop_tokens": "stop_token",
        "dry_sequence_breakers": "dry_breaker",
        "adaptive": "fixed",
        "exact": "allow_near_ties",
    }
    found = [one for one in cli.commands["generate"].params if one.name == other.get(name, name)]
    assert len(found) == 1, name
    return found[0]


def words(name, value):
    """Return the arguments for a value, or None where the command line has none."""
    rule = (SAMPLING | SPECULATION)[name]
    if (
        isinstance(value, (bool, dict, list))
        or rule.type == "boolean"
        or isinstance(value, str) != (rule.type == "string")
    ):
        return None
    if name in ("grammar", "overflow") or (name, value) == ("max_tokens", -1):
        return None
    return [
        f"{option(name).opts[-1]}={value}"
        if option(name).opts[-1].startswith("--")
        else f"{option(name).opts[-1]}{value}"
    ]


def with_words(cases):
    """Return the cases with the values that a command line can have: owner, name, values and arguments."""
    found = [
        (owner, name, [(value, words(name, value)) for value in values if words(name, value)])
        for owner, name, values in cases
    ]
    return [one for one in found if one[2]]


@pytest.mark.parametrize(("owner", "name", "values"), with_words(REFUSED))
def test_the_command_line_refuses(owner, name, values):
    for value, arguments in values:
        with pytest.raises((InvalidOptionError, click.UsageError)) as caught:
            parsed(cli.commands["generate"], *arguments)
        if isinstance(caught.value, InvalidOptionError):
            assert caught.value.option == name, value
        else:
            assert caught.value.param.name == option(name).name, value


@pytest.mark.parametrize(("owner", "name", "values"), with_words(TAKEN))
def test_the_command_line_takes(owner, name, values):
    for value, arguments in values:
        sampling, speculation = parsed(cli.commands["generate"], *arguments)
        assert getattr(sampling if owner is Sampling else speculation, name) == value


def test_the_flags_of_the_command_line():
    flags = [(name, rule) for _, name, rule in TABLE if rule.type == "boolean"]
    sampling, speculation = parsed(
        cli.commands["generate"], *(option(name).opts[-1] for name, _ in flags)
    )
    for name, rule in flags:
        assert getattr(sampling if name in SAMPLING else speculation, name) is not rule.inverted


def test_the_sequences_of_the_command_line():
    sampling, _ = parsed(
        cli.commands["generate"], "--stop", "a", "--stop", "b", "--stop-token", "5", "--dry-breaker", "x", "--logit-bias", "7=-inf", "--max-tokens=-1"
    )  # fmt: skip
    assert (sampling.stop, sampling.stop_tokens, sampling.dry_sequence_breakers) == (
        ("a", "b"),
        (5,),
        ("x",),
    )
    assert (dict(sampling.logit_bias), sampling.max_tokens) == ({7: -math.inf}, None)


def test_the_defaults_of_the_command_line():
    """Those of the bundled model are left out: it brings some of its own."""
    from gguf_spec.registry.resolve import resolve

    sampling, speculation = parsed(cli.commands["generate"])
    assert speculation == Speculation()
    assert sampling == dataclasses.replace(Sampling(), **resolve("tales").sampling)


def test_the_help_of_the_table_is_shown():
    for _, name, rule in TABLE:
        assert option(name).help == rule.help
        shown = [*option(name).opts, *option(name).secondary_opts]
        flags = rule.flags or [f"--{name.replace('_', '-')}"]
        assert shown == [one for flag in flags for one in flag.split("/")]
        if rule.type not in ("boolean", "any") and rule.shape == "one":
            assert option(name).default == getattr(
                (Sampling if name in SAMPLING else Speculation)(), name
            )


def test_schemas_can_be_written_as_json():
    for _, _, rule in TABLE:
        assert json.loads(json.dumps(rule.schema)) == rule.schema


def test_commands_leave_an_optional_switch_to_the_library():
    command = dict(cli.paths())["generate"]
    given = command.make_context("generate", ["x"]).params
    names = [name for name, rule in LOADING.items() if rule.type == "boolean" and rule.optional]
    assert names == ["mmap", "extra_bufts"]
    assert [given[PARAMETERS[name]] for name in names] == [None, None]
