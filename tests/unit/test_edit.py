"""Edits without a model: the parts of a text, what an instruction says, changes by code, and what speaks against a change."""

import re
from types import SimpleNamespace

import pytest

from gguf_spec import Completion, Sampling, Stats
from gguf_spec.edit import EditPlan, Hunk, apply, patch, run
from gguf_spec.edit.parts import parts_of
from gguf_spec.errors import InvalidOptionError, OptionTypeError

PYTHON = '''import os


class Store:
    """Things."""

    def __init__(self, items):
        self.items = items

    def total(self):
        return sum(self.items)

    def clear(self):
        self.items = []


class Shop:
    def total(self):
        return 0


def average(items):
    total = sum(items)
    return total / len(items)


def show(store, total=1):
    """Show the total."""
    print(f"{total} of {store.total()}", total)
    return average(items=[total])


TIMEOUT = 30
'''
INI = """[server]
host = a
port = 80
timeout = 30

[client]
host = b
timeout = 30 # seconds
"""
YAML = """servers:
  - name: web
    port: 80
    timeout: 30
  - name: db
    port: 81
    timeout: 30
logging:
  level: info
"""
JSON = '{\n  "a": 1,\n  "b": {\n    "c": "x",\n    "d": 3\n  }\n}\n'
CSS = ".card { color: #fff; }\n.button { color: #fff; }\n"
C = """struct list { int len; int cap; };
struct text { int len; };
/* len of a list */
int size(struct list *l) { return l->len; }
int chars(struct text *t) { return t->len; }
"""
STATES = "struct track {\n\tchar *name;\n};\nstruct state {\n\tchar *name;\n};\nstatic struct state now = {\n\t.name = 0,\n};\nvoid f(struct state *s, struct track *t)\n{\tputs(s->name); puts(t->name); }\n"
GO = "type Cart struct {\n\tTotal int\n}\n\ntype Order struct {\n\tTotal int\n}\n\nfunc f(c *Cart, o *Order) int {\n\treturn c.Total + o.Total\n}\n"
JAVA = "class Cart {\n    int sum;\n    Cart(int sum) { this.sum = sum; }\n}\nclass B {\n    int f() { return cart().sum; }\n}\n"
SQL = "CREATE TABLE books (\n    id INTEGER,\n    price FLOAT\n);\n\nCREATE TABLE loans (\n    fee FLOAT\n);\n"
MAKE = "CC = gcc\n\nall: a b\n\nclean:\n\trm -f a\n\trm -f b\n"
MARKDOWN = "# Top\n\nA.\n\n## Install\n\n```\n# no heading\n```\n\n## Use\n\nB.\n"
SHELL = '#!/bin/sh\n# start() {\nstart() {\n  echo "}"\n}\nstop() {\n  echo b\n}\n'
JAVASCRIPT = 'const a = { x: 1 };\nexport function total(items) {\n  let s = "{";\n  return s;\n}\nclass Store {\n  total() {\n    return 1;\n  }\n}\nconst go = async (x) => {\n  return x;\n};\n'


@pytest.mark.parametrize(("name", "text", "part", "lines"), [
    ("a.py", PYTHON, "Store.total", (10, 11)), ("a.py", PYTHON, "average", (22, 24)), ("a.py", PYTHON, "TIMEOUT", (33, 33)),
    ("a.py", PYTHON.replace("import os", "import ("), "Shop", (17, 19)),
    ("a.ini", INI, "client", (6, 8)), ("a.ini", INI, "client.timeout", (8, 8)), ("a.yaml", YAML, "servers", (1, 7)),
    ("a.yaml", YAML, "db", (5, 7)), ("a.json", JSON, "b", (3, 6)), ("a.css", CSS, ".button", (2, 2)), ("a.c", C, "list", (1, 1)),
    ("a.c", C, "chars", (5, 5)), ("a.sql", SQL, "loans", (6, 8)), ("a.sql", SQL, "price", (3, 3)), ("Makefile", MAKE, "clean", (5, 7)),
    ("a.md", MARKDOWN, "Install", (5, 9)), ("a.md", MARKDOWN, "Top", (1, 13)), ("a.sh", SHELL, "start", (3, 5)), ("run", SHELL, "stop", (6, 8)),
    ("a.js", JAVASCRIPT, "total", (2, 5)), ("a.js", JAVASCRIPT, "Store.total", (7, 9)), ("a.js", JAVASCRIPT, "go", (11, 13)),
    ("a.kt", "enum class Light {\n    RED\n}\n", "Light", (1, 3)), ("a.dart", "abstract interface class Shape {\n  int a();\n}\n", "Shape", (1, 3)),
    ("a.tsx", "export function Field({ label, value }: Props) {\n  return 1;\n}\n", "Field", (1, 3)),
    ("a.html", '<div>\n  <p id="x">\n    a\n  </p>\n</div>\n', "x", (2, 4)),
])  # fmt: skip
def test_parts(name, text, part, lines):
    found = [
        one
        for one in parts_of(text.removesuffix("\n").split("\n"), name)
        if part in {one.name, ".".join(one.path)}
    ]
    exact = [one for one in found if ".".join(one.path) == part] or found
    assert exact, "not found"
    assert (exact[0].start + 1, exact[0].end) == lines


@pytest.mark.parametrize(
    "name",
    [
        "a.py",
        "a.c",
        "a.json",
        "a.ini",
        "a.md",
        "a.sql",
        "Makefile",
        "a.html",
        "a.sh",
        "Dockerfile",
        "a.css",
        "x",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        "{{{",
        "[",
        "a:",
        "- \n",
        "\t\n  \n",
        "<a",
        '"',
        "```\n# a",
        "===",
        "def f(:\n",
        "\x00",
        ";;\n",
        "FROM a AS b",
    ],
)
def test_parts_of_anything(name, text):
    lines = text.split("\n")
    for one in parts_of(lines, name):
        assert 0 <= one.start < one.end <= len(lines)


def plan(text, instruction, name="a.py", **options):
    return EditPlan(text, instruction, name=name, **options)


@pytest.mark.parametrize(("name", "text", "instruction", "scope", "kept"), [
    ("a.py", PYTHON, "add a docstring to the function average", ["average"], []),
    ("a.py", "def item():\n    pass\n\n\ndef items():\n    pass\n", "item should return 1, leave items alone", ["item"], ["items"]),
    ("a.py", PYTHON, "in Store.total skip negative items", ["Store.total"], []),
    ("a.py", PYTHON, "make average return 0 for an empty list", ["average"], []),
    ("a.py", PYTHON, "average should return 0 for an empty list, as show does", ["average"], []),
    ("a.py", PYTHON, "add type hints to the total method of the class Store, leave Shop alone", ["Store.total"], ["Shop"]),
    ("a.py", PYTHON, "only in class Shop: return 1 from total", ["Shop.total"], []),
    ("a.py", PYTHON, "show should print store.total() last", ["show"], []),
    ("a.py", PYTHON, "fix the division by zero in `average`, do not touch show", ["average"], ["show"]),
    ("a.py", PYTHON, "add type hints to the methods of Shop", ["Shop"], []),
    ("a.py", PYTHON, "add type hints to the functions average and show", ["average", "show"], []),
    ("a.py", PYTHON, "return 0 for an empty list in the functions `show` and average()", ["average", "show"], []),
    ("a.py", PYTHON, "document the classes Store, and Shop, leave show alone", ["Store", "Shop"], ["show"]),
    ("a.py", PYTHON, "add a docstring to the functions average and twelve", ["average"], []),
    ("a.py", PYTHON, "correct lines 21-23", ["lines 21 to 23"], []),
    ("a.txt", "one\ntwo\nthree\n", "correct lines 2-3", ["lines 2 to 3"], []), ("a.txt", "one\ntwo\nthree\n", "correct lines 2-4", [], []),
    ("a.py", PYTHON, "rename the class Store to Cache and update the docstrings", [], []),
    ("a.py", PYTHON, "add a total", [], []),
    ("a.py", PYTHON, "raise an error if it is empty", [], []),
    ("a.ini", INI, "change the timeout in the section [client]", ["timeout"], []),
    ("a.ini", INI, "add a key retries to the section [server]", ["server"], []),
    ("a.ini", INI, "the client should wait 60 seconds", ["client"], []),
    ("a.yaml", YAML, "the second server needs a key retries", ["lines 5 to 7"], []),
    ("a.yaml", YAML, "give db a longer timeout, not web", ["db"], ["web"]),
    ("a.sql", SQL, "the price of a book should be a decimal number", ["price"], []),
    ("a.md", MARKDOWN, "shorten the section Install", ["Install"], []),
    ("a.css", CSS, "make the text of .button black", [".button"], []),
])  # fmt: skip
def test_what_an_instruction_names(name, text, instruction, scope, kept):
    reading = plan(text, instruction, name).reading
    assert [one.label for one in reading.scope] == scope
    assert [one.label for one in reading.kept] == kept


@pytest.mark.parametrize(("name", "text", "instruction", "pairs"), [
    ("a.py", PYTHON, "rename the class Store to Cache", [("class Store", "class Cache")]),
    ("a.py", PYTHON, "rename the function average to mean", [("def average", "def mean"), ("return average", "return mean")]),
    ("a.py", PYTHON, "rename the local variable total in average to amount",
     [("    total = sum", "    amount = sum"), ("return total / len", "return amount / len")]),
    ("a.py", PYTHON, "rename the parameter total of show to n",
     [("store, total=1", "store, n=1"), ('f"{total} of {store.total()}", total)', 'f"{n} of {store.total()}", n)'), ("[total]", "[n]")]),
    ("a.py", PYTHON, "rename items to things in average", [("average(items)", "average(things)"), ("    total = sum(items)", "    total = sum(things)"), ("/ len(items)", "/ len(things)"), ("items=[total]", "things=[total]")]),
    ("a.py", PYTHON, "change the timeout from 30 to 60", [("TIMEOUT = 30", "TIMEOUT = 60")]),
    ("a.py", PYTHON, "delete the method clear of Store", [("\n    def clear(self):\n        self.items = []\n", "")]),
    ("a.py", PYTHON, "remove the function show", [(PYTHON[PYTHON.index("def show") : PYTHON.index("TIMEOUT")], "")]),
    ("a.ini", INI, "set the timeout in the section [client] to 60", [("timeout = 30 #", "timeout = 60 #")]),
    ("a.ini", INI, "change the port to 9090", [("port = 80", "port = 9090")]),
    ("a.ini", INI, "rename host to hostname in [client] only", [("host = b", "hostname = b")]),
    ("a.ini", INI, "rename the section client to peer", [("[client]", "[peer]")]),
    ("a.ini", INI, "remove the timeout from [client]", [("timeout = 30 # seconds\n", "")]),
    ("a.yaml", YAML, "change the timeout of the second server to 60", [("81\n    timeout: 30", "81\n    timeout: 60")]),
    ("a.yaml", YAML, "change port 81 to 82", [("81", "82")]),
    ("a.yaml", YAML, "set level to debug", [("info", "debug")]),
    ("a.yaml", YAML, "rename the key port to listen everywhere", [("port: 80", "listen: 80"), ("port: 81", "listen: 81")]),
    ("a.json", JSON, "remove the key d", [(',\n    "d": 3', "")]),
    ("a.json", '{\n  "a": [\n    "x",\n    "y"\n  ]\n}\n', "remove line 4", [(',\n    "y"', "")]),
    ("a.js", "f();\ng();\nh(1);\n", "remove line 2", [("g();\n", "")]),
    ("a.json", JSON, "set c to y", [('"x"', '"y"')]),
    ("a.css", CSS, "rename .card to .panel", [(".card", ".panel")]),
    ("a.css", CSS, "change #fff to #eee in .card", [(".card { color: #fff", ".card { color: #eee")]),
    ("a.c", C, "rename the function size to length", [("int size", "int length")]),
    ("a.toml", "[a]\nx = 1\n[a.b]\ny = 1\n[ab]\n", "rename the section a to c", [("[a]", "[c]"), ("[a.b]", "[c.b]")]),
    ("a.md", "We do not take big changes. Small ones need no\ntest.\n", 'Replace the sentence "We do not take big changes." with "Ask before you start."', [("We do not take big changes.", "Ask before you start.")]),
    ("a.txt", "He said: come in.\nThe end.\n", 'replace the words "come in" by "go away, but not before noon"', [("come in", "go away, but not before noon")]),
    ("a.md", "## Get it\n\nGet it here.\n", 'change the heading "Get it" to "Install"', [("## Get it", "## Install")]),
    ("a.rst", "Get it\n------\n\nGet it here.\n", 'change the heading "Get it" to "Install now"', [("Get it\n------", "Install now\n-----------")]),
    ("a.rst", "====\nSome\n====\n\nSome words.\n", 'change the title "Some" to "Something"', [("====\nSome\n====", "=========\nSomething\n=========")]),
    # the lines of a front matter, and one below a heading with a mark of its own, are no part of it
    ("a.md", "---\na: 1\n---\n# Get it\n***\n", 'change the heading "Get it" to "Installation"', [("# Get it", "# Installation")]),
    ("a.md", "---\na: 1\n---\nGet it\n------\n", 'change the heading "Get it" to "Installation"', [("Get it\n------", "Installation\n------------")]),
    ("a.md", MARKDOWN, 'in the section "Install" write heading2 instead of heading', [("no heading", "no heading2")]),
])  # fmt: skip
def test_changes_by_code(name, text, instruction, pairs):
    wanted = text
    for old, new in pairs:
        assert wanted.count(old) == 1, old
        wanted = wanted.replace(old, new)
    result = plan(text, instruction, name).result_by_code()
    assert result.text == wanted
    assert (result.way, result.refused) == ("code", ())


@pytest.mark.parametrize(("name", "use", "is_taken"), [
    ("a.java", "i.price()", False), ("a.java", "price(i)", True), ("a.cpp", "i->price", False),
    ("a.cs", "price + i.price", True), ("a.rs", "Item::price(i)", False), ("a.js", "i.n", False),
])  # fmt: skip
def test_a_variable_may_have_the_name_of_a_member(name, use, is_taken):
    text = f"int total(Item i) {{\n  int n = {use};\n  return n;\n}}\n"
    result = plan(text, "rename the local variable n in total to price", name).result_by_code()
    assert any("price is the name of something" in one for one in result.refused) == is_taken


@pytest.mark.parametrize(("head", "use"), [
    ("class Bill", "Price"), ("class Bill", "this.Price"), ("class Bill", "x.Price"),
    ("class Bill : Order", "Price"), ("class Bill : Sub", "Price"),
])  # fmt: skip
def test_a_member_that_another_class_has_too_is_asked_about(head, use):
    text = "class Order {\n  int Price;\n  int F() { return Price; }\n}\n"
    more = f"class Sub : Order {{\n  int k;\n}}\n{head} {{\n  int Price;\n  int G() {{ return {use}; }}\n}}\n"
    result = plan(text + more, "rename Price to Cost in Order", "a.cs").result_by_code()
    assert result.text == text.replace("Price", "Cost") + more
    assert result.refused


@pytest.mark.parametrize("declared", [
    "Bill x = make();", "List<Bill> x = make();", "var x = make();", "x = make();", "return x",
])  # fmt: skip
def test_a_member_of_a_variable_of_another_type_is_asked_about(declared):
    text = f"class Order {{\n  int Price;\n}}\nint F(Order o) {{\n  {declared}\n  return o.Price + x.Price;\n}}\n"
    result = plan(text, "rename Price to Cost in Order", "a.cs").result_by_code()
    assert result.text == text.replace("int Price", "int Cost").replace("o.Price", "o.Cost")
    assert result.refused


@pytest.mark.parametrize(("name", "text", "instruction", "why"), [
    ("a.ini", INI, "rename the key host to hostname", "the key host stands at 2 places"),
    ("a.ini", INI, "change the timeout from 30 to 60", "30 stands at 2 places"),
    ("a.py", PYTHON, "rename the method total to amount", "the method total stands at 2 places"),
    ("a.py", PYTHON, "rename the method total of Store to amount", "is used outside of its class"),
    ("a.css", CSS, "replace #fff with #000", "#fff stands at 2 places"),
    ("a.py", PYTHON, "remove the function average", "average is not defined"),
    ("a.json", JSON, "rename the key c to d", "d is the name of something already"),
    ("a.c", STATES, "rename the field name of the struct state to title", "which of the uses of name belong to it is not certain"),
    ("a.ts", "interface State {\n  name: string;\n}\nconst state: State = {\n  name: '',\n};\n", "rename name in State to title", "which of the uses of name"),
    ("a.java", JAVA, "rename the field sum of Cart to total", "which of the uses of sum"),
    ("a.sql", "CREATE TABLE a (name TEXT);\nCREATE TABLE b (name TEXT);\nSELECT a.name, b.name FROM a JOIN b;\n", "rename the column name of a to title", "name is a column of a and of b"),
    ("a.js", JAVASCRIPT, "rename x in stop to y", "the named place was not found"),
    ("a.js", JAVASCRIPT, "rename x in stop to all", "the named place was not found"),
    ("a.py", "class A:\n    n = 1\n\n\nn = A().n\n", "rename n to m", "there are a method and a variable n"),
    ("a.php", "<?php\nclass A {\n  private $n = 1;\n  function f() { return $this->n; }\n}\n", "rename n in A to m", "n has other uses"),
    ("a.md", "A cat.\n\nA cat.\n", "replace cat with dog in the chapter C", "the named place was not found"),
])  # fmt: skip
def test_a_change_by_code_that_is_not_clear(name, text, instruction, why):
    (refused,) = plan(text, instruction, name).result_by_code().refused
    assert why in refused


@pytest.mark.parametrize(("name", "text", "instruction", "n"), [
    ("a.c", STATES, "rename the field name of the struct state to title", [5, 11]),
    ("a.c", C, "rename the field len of struct list to count", [1, 4]),
    ("a.go", GO, "rename the field Total of Cart to Sum", [2, 10]),
    ("a.ts", "interface A {\n  n: string;\n}\nfunction f(a: A, b: B) {\n  return a.n + b.n;\n}\n", "rename n in A to m", [2, 5]),
    ("a.py", "class A:\n    @n\n    def n(self):\n        pass\n\n\ndef n(a):\n    return a.n()\n\n\nn(A())\n", "rename the function n to m", [7, 11]),
    ("a.py", "class A:\n    n = 1\n\n\nn = A().n\n", "rename the variable n to m", [5]),
    ("a.sh", "n=1\nf() {\n  local n=2\n}\n", "rename n in f to m", [3]),
    ("a.js", "const n = 1\n\nfunction f(a, n) {\n  return n\n}\n", "rename n in f to m", [3, 4]),
    ("a.js", "const n = 1\nfunction f(a, n) {\n  return n\n}\n", "rename n in f to m", [2, 3]),
    ("a.cpp", "int n;\nint f(int n = 1)\n{\n  return n;\n}\n", "rename n in f to m", [2, 4]),
    ("a.md", "A cat.\n\nA cat.\n", "replace cat with dog in this file", [1, 3]),
])  # fmt: skip
def test_a_rename_stays_in_its_place(name, text, instruction, n):
    edit = plan(text, instruction, name).result_by_code()
    changed = [one.start + 1 + i for one in edit.hunks for i in range(len(one.old))]
    assert changed == n, edit.text
    # another type has a field of that name, or may have it
    assert bool(edit.refused) == any(one in instruction for one in ("field", "n in A"))


@pytest.mark.parametrize("instruction", [
    "set the timeout to a higher value", "rename things so that they are clearer", "change total to return a float", "remove the unused import",
    "remove total from the sum", "change the timeout from 31 to 60", "replace the loop with a comprehension", "rename Store and add a docstring",
])  # fmt: skip
def test_what_needs_the_model(instruction):
    assert plan(PYTHON, instruction).needs_model


def test_a_number_is_no_new_value_for_a_word():
    assert plan('image: "app:1.2"\n', "bump the image to 1.3", "a.yaml").needs_model


def written(text, instruction, answer, name="a.py", **options):
    """Return the edit for what a model wrote."""
    found = plan(text, instruction, name, **options)
    return found.result(answer, SimpleNamespace(stats=None, seed=0))


def test_what_is_outside_of_the_named_part_stays():
    answer = PYTHON.replace("return sum(self.items)", "return max(self.items)").replace(
        "return 0", "return 1"
    )
    result = written(PYTHON, "in Store.total return the largest", answer)
    assert result.text == PYTHON.replace("return sum(self.items)", "return max(self.items)")
    assert [one.is_outside for one in result.hunks] == [False, True]
    assert (result.refused, result.scope) == ((), ("Store.total",))


def test_a_part_is_put_in_its_place_with_its_indentation():
    result = written(PYTHON, "in Store.total return 1", "def total(self):\n    return 1\n")
    assert result.text == PYTHON.replace("return sum(self.items)", "return 1")
    assert (result.way, result.summary) == (
        "part",
        "1 line changed, 0 removed, 1 place, still valid Python",
    )


def test_parts_that_must_stay_do():
    answer = PYTHON.replace("return", "yield")
    result = written(PYTHON, "yield the results, leave Shop and average alone", answer)
    assert "return 0" in result.text
    assert "return total / len" in result.text
    assert "yield sum" in result.text


@pytest.mark.parametrize(("instruction", "old", "new", "why"), [
    ("use a set", PYTHON[-300:], "", "lines are gone"),
    ("use a set", "\n\nTIMEOUT = 30", "", "the end of the text is gone"),
    ("add a comment", "    def clear(self):\n        self.items = []\n", "", "Store.clear is gone"),
    ("use a set", "    def clear", "    def empty", "Store.clear is gone"),
    ("use a list", "sum(self.items)", "sum(self.items", "no longer valid Python"),
    ("use a list", "sum(self.items)", "total(self.items)", "total is not defined"),
    ("give it a type", "def total(self):", "def total(self) -> int:", "the same change is made at 2 places"),
    ("start it", "import os\n", "", "removed: import os"),
])  # fmt: skip
def test_objections(instruction, old, new, why):
    assert old in PYTHON
    result = written(PYTHON, instruction, PYTHON.replace(old, new))
    assert any(why in one for one in result.refused), result.refused


def test_a_change_everywhere_is_asked_for_in_words():
    answer = PYTHON.replace("def total(self):", "def total(self) -> int:")
    assert written(PYTHON, "give every total the type int", answer).refused == ()


def test_the_old_spelling_stays():
    old = "a “b” c  \n\tx = 1\nend"
    new = 'a "b" c\n    x = 2\nend'
    assert written(old, "set it to 2", new, "a.txt").text == "a “b” c  \n\tx = 2\nend"


def test_scope_by_name_and_by_lines():
    assert plan(PYTHON, "x", scope=["Store.total"]).part.start == 9
    assert plan(PYTHON, "x", scope=["10-11", "Shop"]).part.end == 19
    for name, why in (
        ("total", "the text does not have one part total, but several"),
        ("no", "the text does not have part no; it has Store, "),
        ("0", "the text does not have lines 0: it has 33 lines"),
        ("9-99", "the text does not have lines 9-99"),
    ):
        with pytest.raises(InvalidOptionError, match=re.escape(why)):
            plan(PYTHON, "x", scope=[name])
    for text, instruction in (("", "x"), (" \n", "x"), ("a", " "), (None, "x"), ("a", None)):
        with pytest.raises(InvalidOptionError):
            EditPlan(text, instruction)


def test_a_patch_has_the_bytes_of_the_file():
    old = "ä\x0cb\u2028c\r\nx\r\n".encode()
    assert patch(old, old.replace(b"x", b"y"), 'a\t"b') == (
        b'--- "a/a\\011\\"b"\n+++ "b/a\\011\\"b"\n@@ -1,2 +1,2 @@\n '
        + old.split(b"x")[0]
        + b"-x\r\n+y\r\n"
    )
    assert patch(b"a", b"b\n", "f").endswith(b"-a\n\\ No newline at end of file\n+b\n")


LONG = 2000
ODD = {
    "blanks": f"a{' ' * LONG}b", "dashes": "- " * LONG + "x", "quotes": '"' * LONG, "escapes": '\\"' * LONG, "apostrophes": "'a \\'" * LONG,
    "braces": "{" * LONG, "brackets": "f(" * LONG, "keys": "a:" * LONG, "hashes": f"# a{' #' * LONG} x", "throws": f"f() {'throws a ' * LONG}! {{\n}}",
    "settings": f"{'const ' * LONG}=;", "tags": "<a " * LONG, "selectors": f"{'p, ' * LONG}q {{ a: b }}", "same names": "name: x\n" * 500,
    "headings": "# a\n" * 1000, "sections": "[a]\nb = 1\n" * 300, "deep": "\n".join(" " * n + "a:" for n in range(300)), "minus": f"x = {'-' * 5000}1",
    "nul": "a = 1\0\nb", "ends": "class A:\r    def b(self):\r        pass\r\n    c = 1\x0c\u2028\x85\n",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["a.py", "a.c", "a.yaml", "a.ini", "a.md", "a.sql", "Makefile", "a.html", "a.sh"])  # fmt: skip
def test_an_odd_text_takes_no_time_and_gives_no_exception(name, odd):
    """Before, some patterns took exponential time on one long line, and others the square of its length."""
    text = ODD[odd]
    for instruction in ("rename a to c", "name: in a set x to 3, leave b alone"):
        found = plan(text, instruction, name)
        if found.needs_model:
            result = found.result(f"b{text[1:]}", SimpleNamespace(stats=None, seed=0))
        else:
            result = found.result_by_code()
        assert result.hunks


@pytest.mark.parametrize("instruction", ["x must " * LONG, "a." * LONG, "leave " + "a " * LONG, "'" * LONG, "from " * 399, "a b must " * 200])  # fmt: skip
def test_a_long_instruction_takes_no_time(instruction):
    assert plan("def a():\n    b = 1\n", instruction).needs_model


@pytest.mark.parametrize(
    "line",
    [
        "text = text.replace(/'s?/g, '');",
        "return /[`/'{]/.test(a);",
        'const a = [/"/, /}/];',
        "x = a / b; y = '/{';",
    ],
)
def test_a_pattern_between_slashes_is_no_text(line):
    lines = ["function a(text) {", f"  {line}", "}", "", "function b() {", "  return '}';", "}"]
    found = [(one.name, one.start, one.end) for one in parts_of(lines, "a.js")]
    assert [one for one in found if one[0] in "ab"] == [("a", 0, 3), ("b", 4, 7)]


def test_the_order_of_parts_does_not_depend_on_hashes():
    names = [one.name for one in parts_of(["h1, p, b, dl {", "}"], "a.css")]
    assert names == ["h1", "p", "b", "dl"]


def test_an_apostrophe_that_nothing_closes_hides_nothing():
    lines = ["fn a<'x>() {", "}", "fn b() {", "}"]
    assert [one.name for one in parts_of(lines, "a.rs")] == ["a", "b"]


def test_a_lambda_has_a_variable_of_its_own_in_its_line_only():
    text = "f = lambda x: x\nx = 1\n\n\ndef g():\n    return x\n"
    result = plan(text, "rename x to y").result_by_code()
    assert result.text == "f = lambda x: x\ny = 1\n\n\ndef g():\n    return y\n"


def test_empty_lines_beside_a_part_may_change():
    answer = PYTHON.replace("\n    def clear(self):\n        self.items = []\n", "")
    result = written(PYTHON, "remove all of the method clear", answer)
    assert [one.is_outside for one in result.hunks] == [False]


def test_changes_at_one_place_are_made_in_their_order():
    hunks = [Hunk(1, ("b",), ("B",)), Hunk(1, (), ("x",)), Hunk(3, (), ("end",))]
    assert apply(["a", "b", "c"], hunks) == ["a", "x", "B", "c", "end"]


TAKEN = [
    ("a.py", "def f(a):\n    b = 1\n    return a + b\n", "rename the variable b in the function f to a"),
    ("a.py", "def total():\n    return 1\n\n\nwhole = 3\n", "rename the function total to whole"),
    ("a.py", "class A:\n    def b(self):\n        pass\n\n    def c(self):\n        self.b()\n", "rename the method b of A to c"),
    ("a.py", "def items(one):\n    return list(one)\n", "rename the function items to list"),
    ("a.ini", "[a]\nhost = 1\nname = 2\n", "rename the key host to name"),
    ("a.c", "int len(void);\nint size(void);\n", "rename the function len to size"),
    ("a.js", "let open = 1;\nlet shown = 2;\n", "rename the variable open to shown"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "ask"), TAKEN)
def test_a_new_name_that_is_taken_is_doubtful(name, text, ask):
    edit = EditPlan(text, ask, name=name).result_by_code()
    assert edit.hunks and any("already" in one for one in edit.refused), edit


@pytest.mark.parametrize(
    ("old", "ask", "new"),
    [
        (
            "def f(n, m=1):\n    return n\n\n\nprint(f(n=2), g(n=3), f(m=4))\n",
            "rename the parameter n of the function f to count",
            "def f(count, m=1):\n    return count\n\n\nprint(f(count=2), g(n=3), f(m=4))\n",
        ),
        (
            "class A:\n    def f(self, n):\n        return n\n\n\nA().f(\n    n=h(n=1),\n)\n",
            "rename the parameter n of the method f to count",
            "class A:\n    def f(self, count):\n        return count\n\n\nA().f(\n    count=h(n=1),\n)\n",
        ),
    ],
)
def test_a_renamed_parameter_is_renamed_where_it_is_called(old, ask, new):
    edit = EditPlan(old, ask, name="a.py").result_by_code()
    assert (edit.text, edit.refused) == (new, ())


def test_calls_of_another_function_of_the_name_are_doubtful():
    text = "class A:\n    def f(self, n):\n        pass\n\n\nclass B:\n    def f(self, n):\n        pass\n\n\nx.f(n=1)\n"
    edit = EditPlan(text, "rename the parameter n of A.f to count", name="a.py").result_by_code()
    assert any("is not certain" in one for one in edit.refused), edit


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model that writes one text, and what it was asked."""
    import gguf_spec
    from tests.support import tiny

    path = tmp_path_factory.mktemp("writer") / "writer.gguf"
    tiny.write(path, tiny.one_text("\nabcXefgh"), metadata={"llama.context_length": 4096})
    with gguf_spec.load(path, "none", n_ctx=2048, threads=1) as llm:
        yield llm


def test_an_edit_in_an_event_loop(writer):
    import asyncio

    from gguf_spec import AsyncLLM

    async def main():
        llm = AsyncLLM(writer)
        by_model = await llm.edit("abcdefgh\n", "d to X", name="a.txt", others={"b.txt": "other"})
        by_code = await llm.edit("a = 1\n", "set a to 2", name="a.ini")
        hot = await llm.edit("abcdefgh\n", "d to X", name="a.txt", temperature=0.1, seed=1)
        assert hot.text == by_model.text
        with pytest.raises(OptionTypeError, match="temprature"):
            await llm.edit("a = 1\n", "set a to 2", name="a.ini", temprature=1)
        assert (await llm.ask("hi", max_tokens=3)).stats.n_generated <= 3
        return by_model, by_code

    by_model, by_code = asyncio.run(main())
    with pytest.raises(OptionTypeError, match="temprature"):
        writer.edit("a = 1\n", "set a to 2", name="a.ini", temprature=1)
    # the end of the new text does not give way to a stop string of the caller
    assert writer.edit("abcdefgh\n", "d to X", name="a.txt", stop=["zz"]).text == by_model.text
    assert (by_model.text, by_model.way) == ("abcXefgh\n", "text")
    assert (by_code.text, by_code.way) == ("a = 2\n", "code")
    assert writer.edit("abcdefgh\n", "d to X", name="a.txt").text == by_model.text


def test_other_files_are_seen_as_far_as_they_fit(writer):
    plan = EditPlan("abc\n", "d to X", name="a.txt")
    others = {"b.txt": "first " * 20, "c.txt": "second " * 1000}
    (message,) = plan.prompt(writer, others).request
    assert "b.txt" in message["content"] and "c.txt" not in message["content"]
    assert message["content"].index("b.txt") < message["content"].index("abc")


def test_a_text_that_is_far_too_long_is_not_tokenised_whole(writer, monkeypatch):
    from gguf_spec.errors import ContextTooShortError
    from gguf_spec.llama.weights import Weights

    read, whole = [], Weights._tokenize
    monkeypatch.setattr(
        Weights,
        "_tokenize",
        lambda self, text, *a: read.append(len(text)) or whole(self, text, *a),
    )
    with pytest.raises(ContextTooShortError, match="needs about"):
        writer.edit("a line of text\n" * 100_000, "make it shorter")
    assert sum(read) < 100_000


OBJECTIONS = [
    ("a.py", "def f(a):\n    return a\n\n\ndef g(a):\n    return 2 * a\n", "def f(a):\n    return a\n\n\ndef f(a):\n    return a\n", "replace the product in g by a sum", "f is defined twice"),
    ("a.py", "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n", "class A:\n    def f(self):\n        return 1\n\n    def f(self):\n        return 2\n", "g should return 2.0", "A.f is defined twice"),
    ("a.py", "class A:\n    def f(self):\n        return 1\n", "class A:\n    def f(self):\n        return 2\n", "add the missing docstrings in A", "no line was added"),
    ("a.txt", "One.\n\nTwo.\n", "One.\nTwo.\n", "two is more than one", "only empty lines are changed"),
    ("a.html", "<a>One</a>\n<b id='x'>Two</b>\n", "<a>One</a>\n<b id='y'>New</b>\n", 'add a button "New" above "Two"', "Two is gone"),
    ("a.json", '{\n  "test": "run",\n  "lint": "x"\n}\n', '{\n  "test": "run",\n  "lint": "y",\n  "more": 1\n}\n', "add a script typecheck that runs y", "typecheck is not in what was written"),
    ("a.csv", "n,a\n1,Glove\n2,Saw\n3,Goggles\n", "n,a\n1,Glove\n9,Saw\n3,Goggles\n", "there are nine goggles now", "nothing is changed where goggles stands"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "ask", "why"), OBJECTIONS)
def test_what_speaks_against_a_change(name, old, new, ask, why):
    edit = plan(old, ask, name).result(new, SimpleNamespace(stats=None, seed=None))
    assert why in edit.refused, edit


TWO_BLOCKS = "a:\n  host: x\n  timeout: 30\nb:\n  host: y\n  timeout: 30\n"
LEVELS = "[log]\nlevel = info\n# of mails\n[mail]\nlevel = info\n"
SALADS = '[\n  {"name": "Salad", "price": 6.5},\n  {"name": "Salad", "price": 8, "vegan": true},\n  {"name": "Rice", "price": 5}\n]\n'
PLACES = [
    ("a.txt", "One day.\n\nTwo nights.\n\nMore.\n", "One day.\n\nTwo nights.\n\nLess.\n", "the days are longer", "nothing in line 5 or beside it was named"),
    ("a.yaml", TWO_BLOCKS, TWO_BLOCKS.replace("30", "60", 1), "wait 60 seconds, the timeout is too short", "line 6 is like line 3, and which one is meant is not clear"),
    ("a.css", "a {\n  color: light-dark(#111, #eee);\n}\n", "a {\n  color: light-dark(#222, #eee);\n}\n", 'in the dark theme use "#222"', "#111 in line 2 is one of several values, and was not named"),
    ("a.py", "def f(a):\n    a += 1\n    b = 2\n    c = 3\n    return a\n", "def f(a):\n    a += 2\n    b = 2\n    c = 4\n    return a\n", "f should count two steps", "2 places are changed, and what line 2 says was not named"),
    ("a.yaml", TWO_BLOCKS, TWO_BLOCKS.replace("host: x", "host: z"), "write host z only for the database", "line 2 is not for the database"),
    ("a.c", "int shut(int *f)\n{\n\tend(f);\n\t*f = 0;\n}\n", "int shut(int *f)\n{\n\tend(f);\n\tfree(f);\n\tfree(g);\n}\n", "shut must free g", "line 4, which was not named, gave way to others"),
    ("a.yaml", "sales:\n  mail: a\n  hours: weekdays\n", "sales:\n  mail: a\n  hours: none\n", "sales need not be told any more", "what line 3 says was not named"),
    ("a.ini", INI, INI.replace("80", "81"), "use port 81 for all but the section server", "whether server may change is not clear"),
    ("a.json", SALADS, SALADS.replace("6.5", "7.5"), "the big salad is 7.50 now", "line 3 is like line 2, and which one is meant is not clear"),
    ("a.txt", "Alpha beta.\nGamma has ports.\n", "Alpha delta.\nGamma has ports.\n", "take another port", "nothing in line 1 or beside it was named"),
    ("a.sh", "run -p 1:8080 -v a\n\n\n\nrun -q -p 1:8080 b\n", "run -p 9000:8080 -v a\n\n\n\nrun -q -p 1:8080 b\n", "run it at 9000", "line 5 is like line 1, and which one is meant is not clear"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "ask", "why"), PLACES)
def test_a_place_that_the_instruction_does_not_name_is_asked_about(name, old, new, ask, why):
    edit = plan(old, ask, name).result(new, SimpleNamespace(stats=None, seed=None))
    assert why in edit.refused, edit


NAMED_PLACES = [
    ("a.py", "class A:\n    @property\n    def f(self):\n        return self.g\n", "class A:\n    @property\n    def f(self):\n        return self.g\n\n    @f.setter\n    def f(self, g):\n        self.g = g\n", "add a setter to A"),
    ("a.json", SALADS, SALADS.replace(" 5}", " 7}"), "rice is 7 now"),
    ("a.json", SALADS, SALADS.replace("8", "7"), "the vegan salad is 7 now"),
    ("a.txt", "One day.\n\nTwo nights.\n", "One day.\n\nThree nights.\n", "there is a night more"),
    ("a.txt", "One dai.\n\nTwo nights.\n", "One day.\n\nTwo nights.\n", "correct the spelling"),
    ("a.css", "a {\n  color: light-dark(#111, #eee);\n}\n", "a {\n  color: light-dark(#222, #eee);\n}\n", 'use "#222" for #111'),
    ("a.html", '<a id="x" type="text">\n', '<a id="x" type="tel">\n', "x needs the type tel"),
    ("a.txt", "A.\n\nThe cat.\n\nThe dog.\n\nB.\n", "A.\n\nThe dog.\n\nThe cat.\n\nB.\n", "swap the cat and the dog"),
    ("a.json", '{\n  "a": 1,\n  "c": 3,\n  "b": 2\n}\n', '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}\n', "sort the keys"),
    ("a.csv", "n,a,b\n1,Glove,2.5\n2,Saw,2.5\n", "n,a,b\n1,Glove,2.5\n2,Saw,3.5\n", "a saw is 3.5 now"),
    ("a.toml", "[black]\nlength = 9\n\n[ruff]\nlength = 9\n", "[black]\nlength = 9\n\n[ruff]\nlength = 7\n", "7 is ruff's limit"),
    ("a.js", "function f() {\n  try { g(); }\n  catch {\n    return 0;\n  }\n}\n", "function f() {\n  try { g(); }\n  catch (error) {\n    print(error);\n    return 0;\n  }\n}\n", "f must print what went wrong"),
    ("a.css", "a {\n  left: 5px;\n}\n\n\n\n\nb {\n  flex: 0;\n}\n", "a {\n  left: 7px;\n}\n\n\n\n\nb {\n  flex: 0;\n}\n", "more left than 0"),
    ("Makefile", "PDF = a.pdf\nall:\n\tmake --toc $(PDF)\n", "PDF = a.pdf\nall:\n\tmake $(PDF)\n", "no --toc for the PDF"),
    ("a.py", "def read_csv(path):\n    return open(path)\n\n\ndef use(file):\n    return file.read()\n", "def read_csv(path):\n    return open(path, encoding='utf8')\n\n\ndef use(file):\n    return file.read()\n", "open the file as utf8 in read_csv only"),
    ("a.py", "def f(a):\n    return a\n", "def f(a):\n    if a < 0:\n        raise ValueError(a)\n    return a\n", "no negative a in f"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "ask"), NAMED_PLACES)
def test_a_place_that_the_instruction_names_is_not_asked_about(name, old, new, ask):
    edit = plan(old, ask, name).result(new, SimpleNamespace(stats=None, seed=None))
    assert (edit.text, edit.refused) == (new, ())


def test_of_changes_that_are_the_same_the_one_that_is_named_stays():
    ask = "buyers wait too briefly"
    old = "a:\n  wait: 30\n  host: a\n  port: 1\n  user: b\nfor_buyer:\n  wait: 30\n"
    edit = plan(old, ask, "a.yaml").result(old.replace("30", "60"), SimpleNamespace(stats=None, seed=None))  # fmt: skip
    assert (edit.text, edit.refused) == (old[:-3] + "60\n", ())
    assert [one.is_outside for one in edit.hunks] == [True, False]


DOCKER = "FROM a AS build\nRUN x\n\nFROM b\nRUN y\n"
BESIDE = [
    ("a.json", JSON, "add a key e after c", '    "e": 1', '    "c": "x",\n    "e": 1,\n    "d": 3\n'),
    ("a.json", JSON, "add a key e after d", '"e": 1', '    "d": 3,\n    "e": 1\n'),
    ("a.json", JSON, "add a key e before c", '    "e": 1\n    "c": "x"', '    "e": 1,\n    "c": "x",\n'),
    ("a.py", PYTHON, "add a function last before the function show", "\ndef last():\n    return 1\n", "    return 1\n\n\ndef show("),
    ("Makefile", MAKE, "add a target more after all", "all: a b\nmore: c", "all: a b\n\nmore: c\n\nclean:"),
    ("a.json", JSON, "add a key e after c", '    "c": "x",', ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "ask", "answer", "there"), BESIDE)
def test_new_lines_beside_a_part(name, text, ask, answer, there, writer):
    one = plan(text, ask, name)
    (message,) = one.prompt(writer).request
    assert "Write only the new lines" in message["content"]
    edit = one.result(answer, SimpleNamespace(stats=None, seed=None))
    assert there in edit.text and not edit.refused, edit
    assert (edit.text == text) == (not there)


def test_the_last_stage_of_a_dockerfile_needs_no_name():
    reading = plan(DOCKER, "install z in the final image, not in the build stage", "Dockerfile").reading  # fmt: skip
    assert [(one.start, one.end) for one in (*reading.scope, *reading.kept)] == [(3, 5), (0, 3)]


def test_the_steps_of_an_edit_ask_a_model_once_or_not_at_all(writer):
    asked = []

    def write(one):
        asked.append(one)
        return Completion("b\n" * 3, (1, 2, 3), "stop", 7, Stats(n_generated=3))

    code = EditPlan("a = 1\n", "set a to 2", name="a.ini")
    assert run(code, writer, write, Sampling()).text == "a = 2\n"
    assert asked == []
    model = EditPlan("a\nb\nc\n", "write b in each line", name="a.txt")
    edit = run(model, writer, write, Sampling(temperature=0), 5, {"b.txt": "seen"})
    (one,) = asked
    assert (one.sampling.max_tokens, one.sampling.temperature) == (5, 0)
    assert "seen" in str(one.arguments["prompt"]) and one.sampling.stop == ("\n```",)
    assert (edit.text, edit.way, edit.seed) == ("b\nb\nb\n", "text", 7)


def test_a_quoted_word_inside_of_another_one_names_no_place():
    """`lint` is not the key `eslint/order`: the model wrote into that one."""
    text = '{\n  "scripts": {\n    "test": "ava"\n  },\n  "rules": {\n    "eslint/order": "off"\n  }\n}\n'
    plan = EditPlan(text, "add a script 'lint' that runs xo", name="package.json")
    assert "eslint" not in plan.label and not any(one.name == "rules" for one in plan.reading.scope)
