"""Run the official JSON-Schema-Test-Suite against the grammars of schemas: the cases of each file.

    pip download --no-binary=jsonschema --no-deps jsonschema && tar xzf jsonschema-*.tar.gz
    .venv/bin/python scripts/checks/json_schema_suite.py jsonschema-*/json/tests

A grammar writes a subset of the valid values (see `gguf_spec.grammar.json_schema.to_gbnf`). So a case is

- `ok` if a valid instance is accepted, or an invalid one is rejected;
- `narrow` if a valid instance is rejected for one of the documented reasons, which `why_narrow` finds again;
- `dropped` if the grammar disagrees and a keyword of the schema was dropped and named;
- `refused` if the schema is invalid, allows no value, or cannot be converted;
- `wrong` if an invalid instance is accepted, or a valid one is rejected for no documented reason. There must be none.

Exit status 1 where a case is wrong.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

from gguf_spec.errors import InvalidOptionError
from gguf_spec.grammar.automaton import Automaton
from gguf_spec.grammar.json_schema import _FORMATS, KINDS, dropping, to_gbnf

KINDS_OF_CASES = ("ok", "narrow", "dropped", "refused", "wrong")
DRAFTS = ("draft2020-12", "draft7")
OPTIONAL = (
    "optional/ecmascript-regex.json",
    "optional/non-bmp-regex.json",
    *(f"optional/format/{name}.json" for name in _FORMATS),
)


def is_followed(automaton, text):
    automaton.reset_budget()
    at = automaton.read(
        automaton.number(automaton.start), text.encode("utf-8", errors="surrogatepass")
    )
    return at >= 0 and () in automaton.states[at][0]


def verdicts(automaton, value):
    """Whether the grammar takes a value, written compactly and with the default separators."""
    return {
        is_followed(automaton, json.dumps(value, ensure_ascii=False, separators=s))
        for s in ((",", ":"), (", ", ": "))
    }


def kind_of(value):
    """Return the group of keywords for a type of value; None for booleans and null."""
    kinds = {dict: "object", list: "array", str: "string", int: "number", float: "number"}
    return None if isinstance(value, bool) else kinds.get(type(value))


def parts(schema):
    """A schema and all schemas in it, wherever they stand."""
    yield schema
    for part in (
        schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    ):
        yield from parts(part)


def values_in(value):
    yield value
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from values_in(part)


def why_narrow(schema, value):
    """The documented reason for which a valid value may not be written, or None."""
    schemas = [part for part in parts(schema) if isinstance(part, dict)]
    values = list(values_in(value))
    if isinstance(schema, dict) and "json-schema.org" not in schema.get(
        "$schema", "json-schema.org"
    ):
        return "all keywords count, whatever `$schema` says"
    spoken_of = {
        kind
        for part in schemas
        if "type" not in part
        for kind, keys in KINDS.items()
        if keys & part.keys()
    }
    top = {
        kind for kind, keys in KINDS.items() if isinstance(schema, dict) and keys & schema.keys()
    }
    if top and "type" not in schema and kind_of(value) not in top:
        spoken_of = top
    if spoken_of and any(kind_of(v) not in spoken_of for v in values):
        return "a schema without a type is of the kind that its first keywords speak of"
    named = {
        name
        for part in schemas
        for name in (*part.get("properties", {}), *part.get("required", []))
    }
    if any(part.keys() & {"properties", "patternProperties"} for part in schemas) and any(
        isinstance(v, dict) and v.keys() - named for v in values
    ):
        return "an object that names properties has no others"
    order = [
        name
        for part in schemas
        for name in (*part.get("required", []), *part.get("properties", {}))
    ]
    if any(
        isinstance(v, dict) and [*v] != [name for name in dict.fromkeys(order) if name in v]
        for v in values
    ):
        return "required properties come first, in their order"
    if any(
        isinstance(part.get("prefixItems", part.get("items")), list) and "minItems" not in part
        for part in schemas
    ):
        return "a tuple is whole"
    if any(
        isinstance(v, float | int) and not isinstance(v, bool) and len(str(v).lstrip("-")) > 15
        for v in values
    ):
        return "numbers have up to 16 digits"
    if any(isinstance(v, float) and v.is_integer() for v in values):
        return "an integer has no point"
    if any(part.keys() & {"format", "contentEncoding"} for part in schemas):
        return "a format is written in one way, and base64 is enforced"
    return None


def run_file(path):
    counts, shown = Counter(), []
    for group in json.loads(path.read_text()):
        dropped = []
        try:
            with dropping(dropped):
                automaton = Automaton(to_gbnf(group["schema"]), int)
        except InvalidOptionError:
            counts["refused"] += len(group["tests"])
            continue
        for test in group["tests"]:
            taken, why = verdicts(automaton, test["data"]), None
            if taken == {test["valid"]}:
                kind = "ok"
            elif taken == {False} and (why := why_narrow(group["schema"], test["data"])):
                kind = "narrow"
            elif dropped:
                kind = "dropped"
            else:
                kind = "wrong"
            counts[kind] += 1
            if kind != "ok":
                shown.append(
                    (
                        kind,
                        why or "",
                        group["description"],
                        test["description"],
                        group["schema"],
                        test["data"],
                        test["valid"],
                    )
                )
    return counts, shown


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path, help="the folder that holds draft2020-12 and draft7")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the narrow cases too")
    arguments = parser.parse_args()
    total = Counter()
    for draft in DRAFTS:
        folder, whole = arguments.tests / draft, Counter()
        print(f"\n| {draft} | ok | narrow | dropped | refused | wrong |\n|---|---|---|---|---|---|")
        problems = []
        for path in sorted(folder.glob("*.json")) + [
            folder / name for name in OPTIONAL if (folder / name).exists()
        ]:
            counts, shown = run_file(path)
            problems += [
                (path.name, *case) for case in shown if case[0] == "wrong" or arguments.verbose
            ]
            print(
                f"| {path.relative_to(folder)} | "
                + " | ".join(str(counts[kind]) for kind in KINDS_OF_CASES)
                + " |"
            )
            whole += counts
        print("| all | " + " | ".join(str(whole[kind]) for kind in KINDS_OF_CASES) + " |")
        for name, kind, why, group, test, schema, value, valid in problems:
            told = "valid" if valid else "invalid"
            print(
                f"{kind}: {name}: {group}: {test} ({told}) {why}\n  {json.dumps(schema)[:300]}\n  {json.dumps(value)[:200]}"
            )
        total += whole
    raise SystemExit(total["wrong"] > 0)


if __name__ == "__main__":
    main()
