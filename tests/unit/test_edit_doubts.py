"""What a model wrote for an instruction: which changes are written, and which are asked about."""

from types import SimpleNamespace

import pytest

from gguf_spec.edit import EditPlan
from gguf_spec.edit.doubts import doubts, new_values
from gguf_spec.edit.hunks import Hunk
from gguf_spec.edit.structure import changed_runs, data_changes, tree_of

CONFIG = {
    "a.yaml": "# the service\nserver:\n  host: web-1\n  port: 8080 # plain\n  timeout: 30\ncache:\n  size: 100\n  ttl: 60\nusers:\n  - name: ann\n    role: admin\n  - name: ben\n    role: guest\nversion: \"3.8\"\n",
    "a.json": '{\n  "server": {\n    "host": "web-1",\n    "port": 8080,\n    "timeout": 30\n  },\n  "cache": {"size": 100, "ttl": 60},\n  "users": [\n    {"name": "ann", "role": "admin"},\n    {"name": "ben", "role": "guest"}\n  ],\n  "version": "5"\n}\n',
    "a.toml": '# the service\n[server]\nhost = "web-1"\nport = 8080 # plain\ntimeout = 30\n\n[cache]\nsize = 100\nttl = 60\n\n[[users]]\nname = "ann"\nrole = "admin"\n\n[[users]]\nname = "ben"\nrole = "guest"\n',
    "a.ini": "; the service\n[server]\nhost = web-1\nport = 8080\ntimeout = 30\n\n[cache]\nsize = 100\nttl = 60\n",
    ".env": "# the service\nHOST=web-1\nPORT=8080\nTIMEOUT=30\nCACHE_SIZE=100\n",
    "a.xml": '<config>\n  <!-- the service -->\n  <server host="web-1" port="8080">\n    <timeout>30</timeout>\n  </server>\n  <cache size="100"/>\n</config>\n',
    "a.csv": 'item,price,stock\nTea,2.50,10\n"Milk, fresh",1.20,4\nCoffee,3.50,7\n',
}  # fmt: skip
KEYS = "# Options\n\nTeh options of the programm. Set `colour_mod` to `none` wiht care.\n\n| key | meaning |\n|---|---|\n| adress | where it listens |\n| retrys | how often it trys |\n\nSee [teh guide](https://example.org/teh-guide) and docs/instal.md.\n\n```\nrun --colour-mod none  # teh usual\n```\n"
TODO = "# Trip\n\n- [ ] book the train\n- [x] pay the hotel\n- [ ] pack the bags\n\n1. Monday: museum\n2. Tuesday: beach\n3. Wednesday: market\n"
PRICES = "# Menu\n\n| dish | price | kcal |\n|------|-------|------|\n| Soup | 4 | 200 |\n| Rice | 5 | 400 |\n| Cake | 3 | 350 |\n\nWrite to shop@example.com or see https://example.com/menu before 2025-03-01.\n"
STORE = "class Store:\n    def __init__(self, items):\n        self.items = items\n\n    def total(self):\n        return sum(self.items)\n\n\ndef average(items):\n    return sum(items) / len(items)\n\n\ndef main():\n    store = Store([1, 2])\n    print(store.total())\n"
CHINESE = "# 旅行计划\n\n第一天参观博物馆。\n\n第二天去海滩。\n\n第三天回家。\n"
JAPANESE = "# 予定\n\n月曜日は会議があります。\n\n火曜日は休みです。\n"
THAI = "วันจันทร์ไปพิพิธภัณฑ์\n\nวันอังคารไปชายหาด\n"
TEXTS = {"keys.md": KEYS, "todo.md": TODO, "menu.md": PRICES, "store.py": STORE, "zh.md": CHINESE, "ja.md": JAPANESE, "th.txt": THAI, **CONFIG}  # fmt: skip

ASKED = [
    # other entries of a data file
    ("a.yaml", "wait 45 seconds", [("timeout: 30", "timeout: 45"), ("cache:\n  size: 100\n  ttl: 60\n", "")], "cache is gone"),
    ("a.yaml", "listen at 9090, not at 8080", [("8080", "9090"), ("ttl: 60", "ttl: 90")], "cache.ttl changed, too"),
    ("a.yaml", "fix all the spelling mistakes", [("  ttl: 60", "  tll: 60")], "cache.ttl is gone"),
    ("a.yaml", "make ann a guest", [("role: admin", "role: guest"), ("  - name: ben\n    role: guest\n", "")], "is gone"),
    ("a.yaml", "make ben an owner", [("role: guest", "role: owner"), ("timeout: 30", "timeout: 31")], "server.timeout changed, too"),
    ("a.yaml", "the port is 9090 now", [("8080 # plain", "9090")], "a comment is gone: plain"),
    ("a.yaml", "use version 3.9", [('"3.8"', "3.9")], "version is no text any more"),
    ("a.yaml", "turn debug off", [('"true"', "false")], "debug is no text any more", 'host: web-1\ndebug: "true"\nport: 8080\nsize: 100\n'),
    ("a.yaml", "listen at 9090, not at 8080", [("  host: web-1\n  port: 8080 # plain\n", "  port: 9090 # plain\n  host: web-1\n")], "the order of the keys of server changed"),
    ("a.yaml", "add a key retries with 3 to the server", [("  host: web-1\n  port: 8080 # plain\n", "  port: 8080 # plain\n  host: web-1\n  retries: 3\n")], "the order of the keys of server changed"),
    ("a.yaml", "add a key retries with 3 to the cache", [("  ttl: 60\n", "  ttl: 60\n  ttl: 60\n  retries: 3\n")], "the key ttl stands twice"),
    ("a.yaml", "add a user cid with the role guest", [("  - name: ben\n    role: guest\n", "  - name: cid\n    role: guest\n")], ""),
    ("a.json", "let the cache hold 200 entries", [('"size": 100, "ttl": 60', '"size": 200')], "cache.ttl is gone"),
    ("a.json", "the version is 6 now", [('"5"', "6")], "version is no text any more"),
    ("a.json", "add a key debug with the value true", [('"version": "5"', '"debug": true')], "version is gone"),
    ("a.json", "we moved to web-2 from web-1 and wait 60 seconds now", [("web-1", "web-2"), ("30", "60"), ('"size": 100', '"size": 10')], "cache.size changed, too"),
    ("a.toml", "wait 45 seconds", [("timeout = 30", "timeout = 45"), ("size = 100\n", "")], "cache.size is gone"),
    ("a.toml", "let ben be an editor", [('"guest"', '"editor"'), ("ttl = 60", 'ttl = "60"')], "cache.ttl is a text"),
    ("a.ini", "let the server wait longer, 45 seconds", [("timeout = 30", "timeout = 45"), ("host = web-1\n", "")], "server.host is gone"),
    ("a.ini", "let it hold 200 entries", [("size = 100", "size = 200"), ("; the service\n", "")], "a comment is gone: the service"),
    (".env", "wait 45 seconds", [("TIMEOUT=30", "TIMEOUT=45"), ("HOST=web-1", "HOST=web")], "HOST changed, too"),
    ("a.xml", "we moved from web-1 to web-2 and use port 8080 still", [('"web-1"', '"web-2"'), ('<cache size="100"/>', '<cache size="10"/>')], ""),
    ("a.xml", "a size of 200 is better", [('"100"/>', '"200"/>'), ("  <!-- the service -->\n", "")], "a comment is gone"),
    ("a.csv", "tea costs 2.80 now", [("Tea,2.50,10", "Tea,2.80")], "no longer valid CSV: row 2 has 2 fields"),
    ("a.csv", "fresh milk is 1.30 now", [('"Milk, fresh",1.20,4', "Milk, fresh,1.30,4")], "no longer valid CSV"),
    ("a.csv", "coffee costs 3.80 now", [("Coffee,3.50,7", "Coffee,3.80,17")], "changed, too"),
    ("a.csv", "add a row for sugar, 0.90, with a stock of 12", [("item,price,stock", "item,cost,stock"), ("Coffee,3.50,7\n", "Coffee,3.50,7\nSugar,0.90,12\n")], ""),
    # what in prose is no prose
    ("keys.md", "Fix the spelling mistakes", [("Teh options", "The options"), ("colour_mod` to", "colour_mode` to")], "`colour_mod` was changed"),
    ("keys.md", "Fix the spelling mistakes", [("Teh options", "The options"), ("| adress", "| address")], "adress was changed"),
    ("keys.md", 'fix the spelling of "teh" in the text, but not in code', [("Teh options", "The options"), ("# teh usual", "# the usual")], "which was to stay"),
    ("a.json", "all users called ann should be guests", [('"admin"', '"guest"'), ('"web-1"', '"web-2"')], "changed, too"),
    ("keys.md", "correct the typos", [("wiht", "with"), ("teh-guide", "the-guide")], "https://example.org/teh-guide was changed"),
    ("keys.md", "proofread this text", [("wiht", "with"), ("instal.md", "install.md")], "docs/instal.md was changed"),
    ("keys.md", "correct the spelling", [("wiht", "with"), ("# teh usual", "# the usual")], "run --colour-mod none"),
    ("keys.md", "say that it listens everywhere instead of where it listens", [("where it listens", "it listens everywhere"), ("`colour_mod`", "`colour_mode`")], "colour_mod"),
    ("page.md", "fix the grammar", [("It are", "It is"), ("titel", "title")], "was changed, and was not named", "---\ntitel: Home\n---\n\nIt are good.\n"),
    ("page.md", "fix the grammar", [("It are", "It is"), ('class="imgage"', 'class="image"')], "was changed, and was not named", 'It are good.\n\n<img class="imgage">\n'),
    ("page.rst", "fix the typos", [("Teh", "The"), ("teh = 1", "the = 1")], "was changed, and was not named", "Teh code::\n\n    teh = 1\n\nEnd.\n"),
    ("page.md", "fix the typos", [("Teh", "The"), ("teh = 1", "the = 1")], "teh = 1 was changed", "Teh code:\n\n````\n```\nteh = 1\n````\n"),
    ("page.md", "fix the typos", [("Teh", "The"), ("teh = 1", "the = 1")], "teh = 1 was changed", "Teh code:\n\n~~~\n```\nteh = 1\n~~~\n"),
    ("a.txt", "fix the typos", [("Teh", "The"), ("1998", "1989")], "1998 was changed", "Teh year was 1998.\n"),
    ("a.py", "fix the typos in the comments", [("Teh", "The"), ("lenght", "length")], "is code", "# Teh size\nlenght = 1\n"),
    # values that were asked for
    ("menu.md", "change the email address to bob@example.com", [("shop@example.com", "bob@example.org")], "bob@example.com is not in what was written"),
    ("menu.md", "change the date to 2025-04-01", [("2025-03-01", "2025-04-10")], "2025-04-01 is not in what was written"),
    ("menu.md", "let the link go to https://example.com/food", [("https://example.com/menu", "https://example.com/foods/")], ""),
    ("menu.md", "set the price of the cake to 3.75", [("| Cake | 3 ", "| Cake | 3.25 ")], "3.75 is not in what was written"),
    ("menu.md", 'add a sentence "We are closed on Mondays." at the end', [("2025-03-01.\n", "2025-03-01.\n\nWe are closed on Sundays.\n")], "is not in what was written"),
    ("store.py", "let average round to 3 digits", [("return sum(items) / len(items)", "return round(sum(items) / len(items), 2)")], "3 is not in what was written"),
    ("store.py", 'let average raise a ValueError that says "no items" for an empty list', [("    return sum(items) / len", '    if not items:\n        raise ValueError("empty")\n    return sum(items) / len')], "no items is not in what was written"),
    ("a.toml", "let the server listen on port 9000 instead of 8080", [("8080", "9090")], ""),
    # other lines
    ("todo.md", "Tick the box of 'book the train'", [("[ ] book", "[x] book"), ("[x] pay", "[ ] pay")], "what it says was not named"),
    ("todo.md", "on Tuesday we see the harbour", [("beach", "harbour"), ("museum", "castle")], "was not named"),
    ("menu.md", "set the price of the soup to 4.50", [("| Soup | 4 ", "| Soup | 4.50 "), ("| Rice | 5 ", "| Rice | 6 ")], "was not named"),
    ("store.py", "add a function names", [("def average", "def names():\n    return []\n\n\ndef average"), ("print(store.total())", "print(names())")], "only an addition was asked for"),
    ("menu.md", "add a row for bread, 2, 250 kcal", [("| Cake | 3 | 350 |", "| Bread | 2 | 250 |\n| Cake | 2 | 350 |")], ""),
    # what was named and left
    ("store.py", "add type hints to total and average", [("def total(self):", "def total(self) -> int:")], "average, which was named, did not change"),
    ("store.py", "add docstrings to the functions average and main", [("def main():\n", 'def main():\n    """Run."""\n')], "average, which was named, did not change"),
    ("todo.md", "tick the boxes of 'book the train' and 'pack the bags'", [("[ ] book", "[x] book")], "pack the bags, which was named, did not change"),
    ("a.ini", "double size and ttl of the cache", [("size = 100", "size = 200")], "ttl, which was named, did not change"),
    ("zh.md", "第二天改成去爬山", [("去海滩", "去爬山"), ("参观博物馆", "参观动物园")], "was not named"),
]  # fmt: skip


def replaced(text, edits):
    for one, other in edits:
        assert text.count(one) == 1, one
        text = text.replace(one, other)
    return text


def edited(name, ask, edits, text=None):
    old = text or TEXTS[name]
    new = replaced(old, edits)
    plan = EditPlan(old, ask, name=name)
    return plan.result(new, SimpleNamespace(stats=None, seed=None)), new


@pytest.mark.parametrize("case", ASKED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_what_was_not_asked_for_is_asked_about(case):
    name, ask, edits, why, *text = case
    edit, _ = edited(name, ask, edits, *text)
    assert edit.refused and any(why in one for one in edit.refused), edit


TAKEN = [
    ("a.yaml", "set the timeout of the server to 45 seconds", [("timeout: 30", "timeout: 45")]),
    ("a.yaml", "add a user cid with the role guest", [("    role: guest\n", "    role: guest\n  - name: cid\n    role: guest\n")]),
    ("a.yaml", "make ben an admin", [("role: guest", "role: admin")]),
    ("a.yaml", "the cache needs no ttl any more, remove it", [("  ttl: 60\n", "")]),
    ("a.yaml", "give the cache 500 entries and a ttl of 90", [("size: 100", "size: 500"), ("ttl: 60", "ttl: 90")]),
    ("a.yaml", "the server needs a key retries with the value 3", [("  timeout: 30\n", "  timeout: 30\n  retries: 3\n")]),
    ("a.yaml", "add a comment to the ttl that it is in seconds", [("ttl: 60", "ttl: 60 # in seconds")]),
    ("a.yaml", "the title is hall now", [('"room # 5"', '"hall"')], 'title: "room # 5"\nsize: 3\nwidth: 4\nheight: 5\n'),
    ("a.toml", "the title is hall now", [('"room # 5"', '"hall"')], 'title = "room # 5"\nsize = 3\nwidth = 4\nheight = 5\n'),
    ("a.json", "add a key debug with the value true", [('"version": "5"\n', '"version": "5",\n  "debug": true\n')]),
    ("a.json", "add a user cid who is a guest", [('"guest"}\n', '"guest"},\n    {"name": "cid", "role": "guest"}\n')]),
    ("a.json", "remove the user ben", [('"admin"},\n    {"name": "ben", "role": "guest"}', '"admin"}')]),
    ("a.json", "let the server wait 45 seconds", [('"timeout": 30', '"timeout": 45')]),
    ("a.json", "the version is 6 now", [('"5"', '"6"')]),
    ("a.json", "add a retries setting of 3 to the server", [('"timeout": 30\n', '"timeout": 30,\n    "retries": 3\n')]),
    ("a.json", "every user should be an admin", [('"guest"', '"admin"')]),
    ("a.toml", "let the server listen on port 9000 instead of 8080", [("8080", "9000")]),
    ("a.toml", "add a user cid with the role guest", [('role = "guest"\n', 'role = "guest"\n\n[[users]]\nname = "cid"\nrole = "guest"\n')]),
    ("a.toml", "add a section log with level info and file log.txt", [("ttl = 60\n", 'ttl = 60\n\n[log]\nlevel = "info"\nfile = "log.txt"\n')]),
    ("a.ini", "add a key retries to the cache, 3 of them", [("ttl = 60\n", "ttl = 60\nretries = 3\n")]),
    (".env", "the cache should hold 200 entries", [("CACHE_SIZE=100", "CACHE_SIZE=200")]),
    (".env", "add LOG_LEVEL=debug", [("CACHE_SIZE=100\n", "CACHE_SIZE=100\nLOG_LEVEL=debug\n")]),
    ("a.xml", "give the cache a size of 200", [('"100"/>', '"200"/>')]),
    ("a.csv", "tea costs 2.80 now", [("Tea,2.50", "Tea,2.80")]),
    ("a.csv", "we have 9 coffees left", [("3.50,7", "3.50,9")]),
    ("a.csv", "set the stock of the fresh milk to 6", [('fresh",1.20,4', 'fresh",1.20,6')]),
    ("a.csv", "add a row for sugar, 0.90, with a stock of 12", [("3.50,7\n", "3.50,7\nSugar,0.90,12\n")]),
    ("a.csv", "remove the coffee", [("Coffee,3.50,7\n", "")]),
    ("a.csv", "add a column unit with kg in every row", [("stock\n", "stock,unit\n"), ("2.50,10\n", "2.50,10,kg\n"), ("1.20,4\n", "1.20,4,kg\n"), ("3.50,7\n", "3.50,7,kg\n")]),
    ("keys.md", "Fix the spelling mistakes", [("Teh options", "The options"), ("programm.", "program."), ("wiht", "with"), ("how often it trys", "how often it tries"), ("[teh guide]", "[the guide]")]),
    ("keys.md", "rename the key adress to address", [("| adress", "| address")]),
    ("keys.md", "the guide is at https://example.org/guide now", [("https://example.org/teh-guide", "https://example.org/guide")]),
    ("keys.md", "in the example use --colour-mode always", [("--colour-mod none", "--colour-mode always")]),
    ("keys.md", "add a row for timeout, how long it waits", [("| retrys | how often it trys |\n", "| retrys | how often it trys |\n| timeout | how long it waits |\n")]),
    ("menu.md", "change the email address to bob@example.com", [("shop@example.com", "bob@example.com")]),
    ("menu.md", "set the price of the cake to 3.75", [("| Cake | 3 ", "| Cake | 3.75 ")]),
    ("menu.md", "the soup has 220 kcal", [("| Soup | 4 | 200", "| Soup | 4 | 220")]),
    ("menu.md", "rice costs 6 now", [("| Rice | 5 ", "| Rice | 6 ")]),
    ("menu.md", "add a row for bread, 2, 250 kcal", [("| Cake | 3 | 350 |\n", "| Cake | 3 | 350 |\n| Bread | 2 | 250 |\n")]),
    ("menu.md", "the menu is valid until 1 April 2025", [("2025-03-01", "2025-04-01")]),
    ("menu.md", "add a column vegan, yes for all but the soup", [("| kcal |", "| kcal | vegan |"), ("|------|\n| Soup | 4 | 200 |", "|------|---|\n| Soup | 4 | 200 | no |"), ("| 400 |", "| 400 | yes |"), ("| 350 |", "| 350 | yes |")]),
    ("todo.md", "Tick the box of 'book the train'", [("[ ] book", "[x] book")]),
    ("todo.md", "tick the boxes of 'book the train' and 'pack the bags'", [("[ ] book", "[x] book"), ("[ ] pack", "[x] pack")]),
    ("todo.md", "on Tuesday we see the harbour", [("beach", "harbour")]),
    ("todo.md", "add a step for a trip by boat on Tuesday after the beach", [("2. Tuesday: beach\n3. ", "2. Tuesday: beach\n3. Tuesday: trip by boat\n4. ")]),
    ("todo.md", "add 'buy sun cream' to the list of things to do", [("pack the bags\n", "pack the bags\n- [ ] buy sun cream\n")]),
    ("store.py", "add a method names", [("    def total", "    def names(self):\n        return [one.name for one in self.items]\n\n    def total")]),
    ("store.py", "add type hints to total and average", [("def total(self):", "def total(self) -> float:"), ("def average(items):", "def average(items: list[float]) -> float:")]),
    ("store.py", "let average return 0 for an empty list", [("    return sum(items) / len", "    if not items:\n        return 0\n    return sum(items) / len")]),
    ("store.py", "let average round to 3 digits", [("return sum(items) / len(items)", "return round(sum(items) / len(items), 3)")]),
    ("store.py", "total should skip items above 100", [("sum(self.items)", "sum(one for one in self.items if one <= 100)")]),
    ("zh.md", "第二天改成去爬山", [("去海滩", "去爬山")]),
    ("zh.md", "把第一天的博物馆换成动物园", [("博物馆", "动物园")]),
    ("ja.md", "火曜日に会議を入れてください", [("火曜日は休みです", "火曜日は会議があります")]),
    ("th.txt", "เปลี่ยนวันอังคารเป็นไปภูเขา", [("ไปชายหาด", "ไปภูเขา")]),
]  # fmt: skip


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: f"{case[0]}-{case[1]}")
def test_what_was_asked_for_is_not_asked_about(case):
    edit, new = edited(*case)
    assert (edit.text, edit.refused) == (new, ())


def test_a_table_that_was_aligned_again_keeps_its_rows():
    row = "| Bread of the day | 2 | 250 |\n"
    old = PRICES[: PRICES.index("\nWrite")]
    wide = "# Menu\n\n| dish             | price | kcal |\n| ---------------- | ----- | ---- |\n| Soup             | 4     | 200  |\n| Rice             | 5     | 400  |\n| Cake             | 3     | 350  |\n| Bread of the day | 2     | 250  |\n"
    plan = EditPlan(old, "add a row for the bread of the day, 2, 250 kcal", name="menu.md")
    edit = plan.result(wide, SimpleNamespace(stats=None, seed=None))
    assert [one.old for one in edit.hunks] == [()] and not edit.refused, edit
    assert edit.text.startswith(old) and edit.text[len(old) :].replace(" ", "") == row.replace(" ", "")  # fmt: skip


VALUES = [
    ("change the email address to bob@example.com.", ["bob@example.com"]), ("set the limit to 5 MB in lines above 100", ["5"]),
    ("change the port from 80 to 8080", ["8080"]), ("the salad is 7.50 now", ["7.50"]), ('say "Nothing yet." if it is empty', ["Nothing yet."]),
    ("return 0 if n is 5", []), ("correct lines 3 to 9", []), ("move it to line 5", []), ("add 3 tests", []), ("add 5 to the sum", []),
    ('add a button "New" above "Two"', ["New"]), ('add "tea" to the section "Drinks"', ["tea"]), ("the limit must not be 5", []),
    ("use port 8080 instead of 80", ["8080"]), ("use 4 spaces", []), ("see pages 3 to 5", []), ("write the log to stderr", []),
    ("the class called Store needs a method", []), ('fix the line that says "foo"', ["foo"]), ("把端口改成 9090", ["9090"]), ("convert it to 24-hour times", []),
    ("a source arch with https://mirror.example.org/arch", []), ("add a source with https://mirror.example.org/arch, enabled", ["https://mirror.example.org/arch"]),
    ("set the path to /var/lib/data", ["/var/lib/data"]), ("the colour should be #ff0000", ["#ff0000"]), ("bump it to v1.2.3", ["v1.2.3"]),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "values"), VALUES)
def test_the_new_values_of_an_instruction(ask, values):
    assert [*new_values(ask)] == values


LONG = "# Tool\n\n" + "".join(
    f"## About {one}\n\nSome words on {one}.\n\n- one {one}\n- two\n\n"
    for one in ("apples", "pears", "plums", "grapes", "nuts", "figs", "limes")
)
LONG += "## Options\n\n| option | meaning |\n|---|---|\n| --fast | quick |\n\n## Keys\n\n| key | action |\n|---|---|\n| q | quit |\n"


@pytest.mark.parametrize(("ask", "first"), [
    ("add a row --quiet, no output, to the table of options", "| option | meaning |"), ("add a row for x, exit, to the table of keys", "| key | action |"),
    ("add 'three' to the list about pears", "## About pears"), ("say that plums are sweet", "## About plums"),
    ("add a row", ""), ("add a section on cherries", ""), ("fix the spelling", ""), ("say more about all fruits", ""), ("some words are wrong", ""),
])  # fmt: skip
def test_the_part_of_a_long_text_that_is_written_again(ask, first):
    plan = EditPlan(LONG, ask, name="a.md")
    assert (plan.lines[plan.part.start] if plan.part else "") == first


@pytest.mark.parametrize(("old", "new", "labels"), [
    # an item that got more keys, beside a new one, is the same item
    ('[{"name": "ann", "role": "a"}]', '[{"name": "ann", "role": "a", "x": 1, "y": 2, "z": 3}, {"name": "cid"}]', ["ann.x", "ann.y", "ann.z", "cid"]),
    ('[{"name": "ann", "x": 1, "y": 2}]', '[{"name": "ann", "x": 3, "y": 4}, {"name": "cid"}]', ["ann", "ann", "cid"]),
])  # fmt: skip
def test_the_entries_that_differ(old, new, labels):
    changes = data_changes(*(tree_of(one, "a.json") for one in (old, new)))
    assert [one.label for one in changes] == labels


def test_a_deep_or_odd_data_file_is_no_crash():
    for name, text in (
        ("a.yaml", "[" * 70_000),
        ("a.yaml", "&a [*a]\n"),
        ("a.xml", "<!DOCTYPE a><a/>"),
        ("a.json", "[" * 70_000),
    ):
        edit = EditPlan(text, "say b", name=name).result(
            f"{text}b", SimpleNamespace(stats=None, seed=0)
        )
        assert edit.hunks


# The changes themselves, in whatever form a model wrote them.
DOUBTED = [
    # a declaration with another name, of which uses are left
    ("a.c", "TOTAL should be MOST", [("#define TOTAL", "#define MOST")], "TOTAL has another name now, and line 2 still uses it", "#define TOTAL 3\nint all[TOTAL];\nint f(void) { return 1; }\n"),
    ("a.php", "The method add of Router should be called addRoute.", [("function add(", "function addRoute(")], "add has another name now", "<?php\nclass Router {\n  public function add($p) { return $this; }\n  public function get($p) { return $this->add($p); }\n}\n"),
    ("a.kt", "the count should be called total", [("val count = 3", "val total = 3")], "count has another name now", "fun f(): Int {\n  val count = 3\n  log(1)\n  return count + 1\n}\n"),
    ("a.cs", "In Limiter, rename the private field _limit to _most.", [("int _limit;", "int _most;"), ("_limit = top", "_most = best"), ("int top)", "int best)")], "top changed, too, and only _limit was to be renamed", "class Limiter {\n  int _limit;\n  Limiter(int top) { _limit = top; }\n}\n"),
    # a variant, a label, a member: one place has the new name, others the old one
    ("a.rs", "Rename the variant Num of Token to Number, leave Value alone.", [("    Num(f64)", "    Number(f64)")], "Num is Number now, and line 7 still has Num", "enum Token {\n    Num(f64),\n    End,\n}\n\nfn f() -> Token {\n    Token::Num(1.0)\n}\n"),
    ("a.swift", "Change the argument label `at` of book to `on`", [("s: String, at day", "s: String, on day")], "at is on now, and line 2 still has at", "func book(_ s: String, at day: Int) {}\nbook(\"a\", at: 3)\n"),
    # moved, and still where it was; a word that stays misspelt; tags that go; something new in place of a removal
    ("a.md", "tom wasnt there, move him to excused", [("Excused:** Ann", "Excused:** Ann, Tom")], "nothing is gone", "# Minutes\n\n**Present:** Bob, Tom\n**Excused:** Ann\n"),
    ("a.md", "fix the spelling of seperate", [("use seperate", "use separate")], "seperate still stands in line 3", "# X\n\nIt makes seperate files.\n\nPlease use seperate issues.\n"),
    ("a.srt", "move subtitle 2 two seconds later", [("<i>Forty miles</i>", "Forty miles")], "the marks of line 7 are gone", "1\n00:00:01,000 --> 00:00:02,000\nHello\n\n2\n00:00:03,000 --> 00:00:04,000\n<i>Forty miles</i>\n"),
    ("a.java", "Remove the method dump() and the call of it.", [("    private void dump(String where) {\n        err(where);\n    }", "    @Override\n    public String toString() {\n        return new String(cells);\n    }")], "is new, and only a removal was asked for", "class A {\n    private void dump(String where) {\n        err(where);\n    }\n}\n"),
    # what was to stay
    ("a.toml", "add a feature serve that needs axum. It is not one of the default ones.", [('default = ["cli"]', 'serve = ["axum"]')], "features.default is gone", '[features]\ndefault = ["cli"]\ncli = []\n'),
    ("a.toml", "add a feature serve that needs axum. It is not one of the default ones.", [('default = ["cli"]', 'default = ["cli", "serve"]'), ("cli = []\n", 'cli = []\nserve = ["axum"]\n')], "default was to stay", '[features]\ndefault = ["cli"]\ncli = []\n'),
    ("a.json", "theme color #2f6f4e, background stays white", [('"background_color": "#fff"', '"background_color": "#2f6f4e"')], "background was to stay", '{\n  "theme_color": "#fff",\n  "background_color": "#fff"\n}\n'),
    ("a.yaml", "size 200, leave the ttl", [("size: 100", "size: 200"), ("ttl: 60", "ttl: 200")], "ttl was to stay"),
    ("a.md", 'Fix the spelling of "dependancies" in the text. The command is really called like that, don\'t touch it.', [("x check-dependancies", "x check-dependencies")], "which was to stay", "# X\n\nIt has no dependancies.\n\n```\nx check-dependancies\n```\n"),
    # the same change at a place that has fewer words of the instruction
    ("a.txt", "la basura se recoge ahora a las 23:00", [("recoge a las 22:00", "recoge a las 23:00"), ("cierra a las 22:00", "cierra a las 23:00")], "line 4 changed, too", "AVISO\n\n- La basura se recoge a las 22:00.\n- El cuarto se cierra a las 22:00.\n- Gracias.\n"),
    ("a.md", "back door is painted", [("[ ] Paint the front", "[x] Paint the front")], "line 4 has more words", "# House\n\n- [ ] Paint the front door\n- [ ] Paint the back door\n"),
    ("a.md", "back door is painted", [("[ ] Paint the front", "[x] Paint the front"), ("[ ] Paint the back", "[x] Paint the back")], "line 3 changed, too", "# House\n\n- [ ] Paint the front door\n- [ ] Paint the back door\n"),
    ("todo.md", 'Add "pack the tent" at the end of the list', [("- [ ] pack the bags\n", "- [x] pack the bags\n- [ ] pack the tent\n")], "only an addition was asked for"),
    # something more, or something new
    ("a.csv", 'Am Ende: 4530, "Pinsel; rund", Lager D1, 20 Stück zu 6,40', [("4471;Leim;D1;34;11,50\n", "4471;Leim;D1;34;11,50\n4530;Pinsel;D1;20;6,40\n")], "Pinsel; rund is not in what was written", "Nr;Name;Lager;Zahl;Preis\n12;Farbe;A1;3;4,00\n4471;Leim;D1;34;11,50\n"),
    ("a.xml", "the server is known as web-2 too", [('"web-1"', '"web-2"')], "something more was asked for"),
    ("a.txt", "the new address is Mill Lane 9", [("04177 Leipzig", "Mill Lane 9, 04177 Leipzig")], "nothing gave way", "Ann\nHigh Street 3\n04177 Leipzig\n"),
    (".env", "mail goes through mail.example.com, port 587 now", [("PORT=25", "PORT=587")], "mail.example.com is not in what was written", "HOST=old.example.com\nPORT=25\nUSER=ann\n"),
    # a key below the one that was meant, a heading without its line, a name that nothing declares
    ("a.yaml", "scale the worker to 4 replicas", [("        app: worker\n", "        app: worker\n      replicas: 4\n")], "spec.template.metadata.replicas is new, and spec.replicas stays as it was", "kind: Deployment\nspec:\n  replicas: 2\n  template:\n    metadata:\n      labels:\n        app: worker\n"),
    ("a.json", "the port is 9000 now", [('"host": "web-1"', '"host": "web-1",\n    "port": 9000')], "server.port is new, and port stays", '{\n  "port": 8080,\n  "server": {\n    "host": "web-1"\n  }\n}\n'),
    ("a.rst", 'the heading should say "How to use it", and the underline should fit', [("Usage\n", "How to use it\n")], "the underline in line 5 is shorter than its heading", "Top\n===\n\nUsage\n=====\n\nRun it.\n"),
    ("a.kt", "Add the light BLINKING to the enum, seconds() returns 0 for it", [("Light.GREEN -> 30\n", "Light.GREEN -> 30\n        Light.BLINKING -> 0\n")], "Light.BLINKING is used, and Light has no BLINKING", "enum class Light {\n    RED,\n    GREEN\n}\n\nfun seconds(light: Light): Int {\n    return when (light) {\n        Light.RED -> 40\n        Light.GREEN -> 30\n    }\n}\n"),
    ("a.md", "add a section 'Browser' before 'Related' that says it works in browsers", [("## Related\n", "## Browser\n\n- [one](https://example.com/one) for the shell\n- [two](https://example.com/two) for the rest\n\n## Related\n")], "the new lines stand in the text already, from line 7 on", "# Slug\n\nUse it.\n\n## Related\n\n- [one](https://example.com/one) for the shell\n- [two](https://example.com/two) for the rest\n"),
]  # fmt: skip
NOT_DOUBTED = [
    ("a.py", "raise an IndexError instead of a ValueError", [("raise ValueError", "raise IndexError")], "def f():\n    raise ValueError\n\n\ndef g():\n    x = ValueError\n"),
    ("a.md", "move 'buy milk' to the end of the list", [("- buy milk\n- call Ann\n- run\n", "- call Ann\n- run\n- buy milk\n")], "# List\n\n- buy milk\n- call Ann\n- run\n"),
    ("a.js", "log each move to the console", [("  step(m);\n", "  step(m);\n  console.log(m);\n")], "for (const m of moves) {\n  step(m);\n}\n"),
    ("a.js", "let the player move faster", [("speed: 1", "speed: 1 * 2")], "const player = {speed: 1};\n"),
    ("a.py", "fix the spelling of recieve in the comment", [("# recieve it", "# receive it")], "# recieve it\ndef recieve():\n    return 1\n"),
    ("a.py", "remove the argument b of f", [("def f(a, b):", "def f(a):")], "def f(a, b):\n    return a\n"),
    ("a.srt", "no italics in Forty miles", [("<i>Forty miles</i>", "Forty miles")], "1\n00:00:01,000 --> 00:00:02,000\nHello\n\n2\n00:00:03,000 --> 00:00:04,000\n<i>Forty miles</i>\n"),
    ("a.md", "add a section 'Browser' before 'Related' that says it works in browsers", [("## Related\n", "## Browser\n\nIt works in browsers, with a bundler.\n\n## Related\n")], "# Slug\n\nUse it.\n\n## Related\n\n- [one](https://example.com/one) for the shell\n- [two](https://example.com/two) for the rest\n"),
    ("a.md", "add the list of Related again at the end", [("two) for the rest\n", "two) for the rest\n\n- [one](https://example.com/one) for the shell\n- [two](https://example.com/two) for the rest\n")], "# Slug\n\nUse it.\n\n## Related\n\n- [one](https://example.com/one) for the shell\n- [two](https://example.com/two) for the rest\n"),
    ("a.js", "the default of lowercase is false", [("lowercase: true", "lowercase: false")], "import a from 'a';\n\nexport default a;\n\n\n\n\nconst o = {lowercase: true};\n\n\n\n\nuse(o.lowercase);\n"),
    ("requirements.txt", "pin requests to 2.32.3", [("requests>=2.28", "requests==2.32.3")], "flask>=3\nrequests>=2.28\nrequests-cache>=1.2\n"),
    ("php.ini", "memory limit 512M", [("\nmemory_limit = 128M", "\nmemory_limit = 512M")], "[PHP]\n;memory_limit = 64M\nmemory_limit = 128M\nport = 1\n"),
    ("a.xml", "Our own logger should be at INFO. The one for mail stays at DEBUG.", [('own.tickets" level="DEBUG"', 'own.tickets" level="INFO"')], '<c>\n  <logger name="own.tickets" level="DEBUG"/>\n  <logger name="own.mail" level="DEBUG"/>\n</c>\n'),
    ("a.csv", "Der Leim kostet jetzt 12,90", [("B1;34;11,50", "B1;34;12,90")], "Nr;Name;Lager;Zahl;Preis\n12;Farbe;A1;3;4,00\n4471;Leim;B1;34;11,50\n"),
    ("a.csv", "Am Ende: 4530, Pinsel, Lager D1, 20 Stück zu 6,40", [("4471;Leim;D1;34;11,50\n", "4471;Leim;D1;34;11,50\n4530;Pinsel;D1;20;6,40\n")], "Nr;Name;Lager;Zahl;Preis\n12;Farbe;A1;3;4,00\n4471;Leim;D1;34;11,50\n"),
    ("a.cs", "In Limiter, rename the private field _limit to _most.", [("int _limit;", "int _most;"), ("_limit = top", "_most = top")], "class Limiter {\n  int _limit;\n  Limiter(int top) { _limit = top; }\n}\n"),
    ("a.c", "TOTAL should be MOST", [("#define TOTAL", "#define MOST"), ("all[TOTAL]", "all[MOST]")], "#define TOTAL 3\nint all[TOTAL];\nint f(void) { return 1; }\n"),
    # a word with an accent is the key without it, also in quotation marks
    ("a.json", "Le tarif réduit du mercredi passe à 5.5", [("6.0", "5.5")], '{\n  "mardi": {"plein": 7.0, "reduit": 5.0},\n  "mercredi": {"plein": 7.5, "reduit": 6.0}\n}\n'),
    ("a.rst", 'rename the heading "Usage" to "How to use it", and the underline should fit', [("Usage\n=====\n", "How to use it\n=============\n")], "Top\n===\n\nUsage\n=====\n\nRun it.\n"),
    ("a.yaml", "also test with node 22", [("[18, 20]", "[18, 20, 22]")], "jobs:\n  test:\n    node: [18, 20]\n"),
    ("a.kt", "Add the light BLINKING to the enum, seconds() returns 0 for it", [("    GREEN\n}", "    GREEN,\n    BLINKING\n}"), ("Light.GREEN -> 30\n", "Light.GREEN -> 30\n        Light.BLINKING -> 0\n")], "enum class Light {\n    RED,\n    GREEN\n}\n\nfun seconds(light: Light): Int {\n    return when (light) {\n        Light.RED -> 40\n        Light.GREEN -> 30\n    }\n}\n"),
]  # fmt: skip


def doubts_about(name, ask, edits, text=None):
    old = text or TEXTS[name]
    reading = EditPlan(old, ask, name=name).reading
    lines = replaced(old, edits).removesuffix("\n").split("\n")
    runs = changed_runs(reading.lines, lines)
    hunks = [Hunk(i, tuple(reading.lines[i:j]), tuple(lines[k:m])) for i, j, k, m in runs]
    return doubts(hunks, reading)


@pytest.mark.parametrize("case", DOUBTED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_change_that_is_doubted(case):
    name, ask, edits, why, *text = case
    found = doubts_about(name, ask, edits, *text)
    assert any(why in one for one in found), found


@pytest.mark.parametrize("case", NOT_DOUBTED, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_change_that_is_not_doubted(case):
    assert doubts_about(*case) == []
