"""Places that an instruction names by what stands there: rows, records, links, neighbours."""

import pytest

from tests.unit.test_edit_doubts import edited

POST = '---\ntitle: "Bread"\ndate: 2026-03-14\ntags: [bakery, news]\ndraft: false\n---\n\nOn 2026-03-14 we lit the oven. See [Kessler](https://kessler.example/ofen) and a\n[gallery](https://photos.example/oven).\n\nAsk [them](https://kessler.example).\n\nWe open at 8, close at 18 and bake at 5. Begin\nis at 15, the music plays from 20.\n'
CLUB = 'id,name,group,fee,paid\n1,"Ash, Jo",junior,20,yes\n2,Bell,senior,60,no\n3,Cole,junior,20,no\n4,Junior Dee,senior,60,yes\n5,Egg,junior,20,yes\n'
HOUSE = '{\n  "house": "Elm 4",\n  "interval": 30,\n  "devices": [\n    {"id": "t1", "kind": "temperature", "room": "attic", "interval": 30},\n    {"id": "h1", "kind": "humidity", "room": "bath", "interval": 30},\n    {"id": "t2", "kind": "temperature", "room": "bath", "interval": 30}\n  ]\n}\n'
POM = "<project>\n  <artifactId>ledger</artifactId>\n  <version>2.17.0</version>\n  <dependencies>\n    <dependency>\n      <groupId>com.fasterxml</groupId>\n      <artifactId>jackson-databind</artifactId>\n      <version>2.17.0</version>\n    </dependency>\n    <dependency>\n      <groupId>org.slf4j</groupId>\n      <artifactId>slf4j-api</artifactId>\n      <scope>test</scope>\n      <version>2.0.13</version>\n    </dependency>\n  </dependencies>\n</project>\n"
STAFF = '{\n  "staff": [\n    {\n      "age": 30,\n      "desk": 7,\n      "team": "red",\n      "name": "ann"\n    },\n    {\n      "age": 40,\n      "desk": 8,\n      "team": "blue",\n      "name": "ben"\n    }\n  ]\n}\n'
ROLES = "users:\n  - role: admin\n    limits:\n      cpu: 1\n      disk: 9\n    name: ann\n  - role: guest\n    limits:\n      cpu: 2\n      disk: 8\n    name: ben\n"
SHOPS = (
    '[[shop]]\nopen = 8\nrooms = 3\ncity = "Ulm"\n\n[[shop]]\nopen = 9\nrooms = 5\ncity = "Bonn"\n'
)
ROOM = "server:\n  host: web\n  port: 8080\n  debug: true\ndatabase:\n  host: db\n  port: 5432\n  debug: true\n"
INI = "[server]\nhost = web\nport = 8080\n\n[database]\nhost = db\nport = 5432\n"
TARIFF = "# Tariff\n\n| who | group | fee |\n|---|---|---|\n| Ann | child | 4 |\n| Bo | adult | 9 |\n| Cy | child | 4 |\n"
FAQ = "# Questions\n\n**What is the fee?**\nIt is 2 a day.\n\n**Where are you?**\nBeside the harbour.\n\n**Who answers the phone?**\nThe desk.\n"
CHART = "export class Chart {\n  constructor(canvas, values) {\n    this.canvas = canvas;\n    this.values = values;\n  }\n\n  draw(colour, width = 1) {\n    return [colour, width];\n  }\n}\n"
TOOL = "def read(path, limit=10, *, strict=False):\n    return path, limit, strict\n\n\ndef write(path, text):\n    return path, text\n\n\ndef main():\n    write(*read('a')[:2])\n"
TANK = "struct tank { int level; };\n\nvoid fill(struct tank *t, int litres, int most)\n{\n    t->level += litres;\n}\n"
TEXTS = {
    "post.md": POST, "club.csv": CLUB, "house.json": HOUSE, "pom.xml": POM, "staff.json": STAFF,
    "roles.yaml": ROLES, "shops.toml": SHOPS, "room.yaml": ROOM, "room.ini": INI, "fees.md": TARIFF,
    "faq.md": FAQ, "chart.js": CHART, "tool.py": TOOL, "tank.c": TANK,
}  # fmt: skip
PARK = "**Can I park?**\nYes.\n\n"
ALL_T = "All temperature sensors should be read every 60 seconds instead of 30."

TAKEN = [
    # front matter and other short words
    ("post.md", "add the tag oven", [("news]", "news, oven]")]),
    ("post.md", "add oven to the tags", [("news]", "news, oven]")]),
    ("post.md", "remove the tag news", [("bakery, news", "bakery")]),
    ("post.md", "the date of the post is 2026-03-16", [("date: 2026-03-14", "date: 2026-03-16")]),
    ("post.md", "mark the post as a draft", [("draft: false", "draft: true")]),
    ("post.md", "change the title to Bread and more", [('"Bread"', '"Bread and more"')]),
    # a link at several places, named by what it is
    ("post.md", "the website of Kessler is now https://ofen.example", [("https://kessler.example/ofen", "https://ofen.example"), ("https://kessler.example)", "https://ofen.example)")]),
    # a number by the words of its clause
    ("post.md", "we open at 9 now", [("open at 8", "open at 9")]),
    ("post.md", "we close at 19", [("close at 18", "close at 19")]),
    ("post.md", "it begins at 16", [("is at 15", "is at 16")]),
    ("post.md", "the music plays from 21", [("from 20", "from 21")]),
    # rows and records with a value that is named
    ("club.csv", "juniors pay 25 now", [('"Ash, Jo",junior,20', '"Ash, Jo",junior,25'), ("Cole,junior,20", "Cole,junior,25"), ("Egg,junior,20", "Egg,junior,25")]),
    ("club.csv", "the fee of seniors is 65", [("Bell,senior,60", "Bell,senior,65"), ("Dee,senior,60", "Dee,senior,65")]),
    ("fees.md", "children pay 5 now", [("| Ann | child | 4", "| Ann | child | 5"), ("| Cy | child | 4", "| Cy | child | 5")]),
    ("house.json", ALL_T, [('attic", "interval": 30', 'attic", "interval": 60'), ('"t2", "kind": "temperature", "room": "bath", "interval": 30', '"t2", "kind": "temperature", "room": "bath", "interval": 60')]),
    ("house.json", "temperature is read every 60 seconds now", [('attic", "interval": 30', 'attic", "interval": 60'), ('"t2", "kind": "temperature", "room": "bath", "interval": 30', '"t2", "kind": "temperature", "room": "bath", "interval": 60')]),
    # an entry of the record that is named
    ("pom.xml", "bump jackson-databind to 2.17.2", [("databind</artifactId>\n      <version>2.17.0", "databind</artifactId>\n      <version>2.17.2")]),
    ("pom.xml", "use slf4j 2.0.16", [("2.0.13", "2.0.16")]),
    ("staff.json", "ann is 31 now", [('"age": 30', '"age": 31')]),
    ("staff.json", "ben moves to desk 9", [('"desk": 8', '"desk": 9')]),
    ("roles.yaml", "make ben an owner", [("role: guest", "role: owner")]),
    ("roles.yaml", "ben gets 4 cores", [("cpu: 2", "cpu: 4")]),
    ("shops.toml", "Bonn has 6 rooms now", [("rooms = 5", "rooms = 6")]),
    ("shops.toml", "Bonn starts at 10", [("open = 9", "open = 10")]),
    ("room.yaml", "the port of the database is 5433", [("5432", "5433")]),
    ("room.yaml", "no debugging in the database", [("db\n  port: 5432\n  debug: true", "db\n  port: 5432\n  debug: false")]),
    ("room.ini", "the database listens on port 5433 now", [("5432", "5433")]),
    # new lines beside what is named
    ("faq.md", 'after the question where you are, add "Can I park?" with the answer "Yes."', [("**Who", f"{PARK}**Who")]),
    ("faq.md", 'add the question "Can I park?" with the answer "Yes." before the one about the phone', [("**Who", f"{PARK}**Who")]),
    ("fees.md", "add a row for Di, an adult who pays 9, after Bo", [("| adult | 9 |\n", "| adult | 9 |\n| Di | adult | 9 |\n")]),
    ("club.csv", "add member 6, Fox, a senior who has not paid 60, below Egg", [("20,yes\n", "20,yes\n6,Fox,senior,60,no\n")], CLUB.replace("Jo\",junior,20,yes", "Jo\",junior,20,no")),
    ("tool.py", "add a function check that returns True before main", [("def main", "def check():\n    return True\n\n\ndef main")]),
    # parameters
    ("chart.js", "the constructor should work without values, an empty list is the default then", [("canvas, values)", "canvas, values = [])")]),
    ("chart.js", "draw should take a parameter dashed, too", [("width = 1)", "width = 1, dashed = false)")]),
    ("tool.py", "read should have a limit of 20 by default", [("limit=10", "limit=20")]),
    ("tool.py", "remove the parameter strict of read", [(", *, strict=False", ""), (", limit, strict", ", limit")]),
    ("tank.c", "litres should be unsigned", [("int litres", "unsigned litres")]),
    # numbers of which a part stays
    ("post.md", "change the date in the front matter to 2026-03-16", [("date: 2026-03-14", "date: 2026-03-16")]),
]  # fmt: skip
ASKED = [
    ("post.md", "add the tag oven", [('"Bread"', '"Bread oven"')]),
    ("post.md", "add the tag oven", [("news]", "news, oven]"), ("draft: false", "draft: true")]),
    ("post.md", "the website of Kessler is now https://ofen.example", [("https://kessler.example/ofen", "https://ofen.example"), ("https://photos.example/oven", "https://ofen.example")]),
    ("post.md", "the website of the baker is now https://new.example", [("https://photos.example/oven", "https://new.example")]),
    ("post.md", "we open at 9 now", [("close at 18", "close at 9")]),
    ("post.md", "we open at 9 now", [("bake at 5", "bake at 9")]),
    ("post.md", "it begins at 16", [("from 20", "from 16")]),
    ("post.md", "set the date of the post to 2026-03-16", [("date: 2026-03-14", "date: 2026-03-15")]),
    ("club.csv", "juniors pay 25 now", [("Cole,junior,20", "Cole,junior,25"), ("Egg,junior,20", "Egg,junior,25")]),
    ("club.csv", "juniors pay 25 now", [('"Ash, Jo",junior,20', '"Ash, Jo",junior,25'), ("Cole,junior,20", "Cole,junior,25"), ("Dee,senior,60", "Dee,senior,25"), ("Egg,junior,20", "Egg,junior,25")]),
    ("club.csv", "juniors pay 25 now", [('"Ash, Jo",junior,20', '"Ash, Jo",junior,52'), ("Cole,junior,20", "Cole,junior,52"), ("Egg,junior,20", "Egg,junior,52")]),
    ("club.csv", "juniors pay 25 now", [("1,\"Ash", "25,\"Ash"), ("3,Cole", "25,Cole"), ("5,Egg", "25,Egg")]),
    ("fees.md", "children pay 5 now", [("| Ann | child | 4", "| Ann | child | 5")]),
    ("fees.md", "children pay 5 now", [("| Ann | child | 4", "| Ann | child | 5"), ("| Bo | adult | 9", "| Bo | adult | 5"), ("| Cy | child | 4", "| Cy | child | 5")]),
    ("house.json", ALL_T, [('attic", "interval": 30', 'attic", "interval": 60'), ('"humidity", "room": "bath", "interval": 30', '"humidity", "room": "bath", "interval": 60'), ('"t2", "kind": "temperature", "room": "bath", "interval": 30', '"t2", "kind": "temperature", "room": "bath", "interval": 60')]),
    ("house.json", ALL_T, [('  "interval": 30,\n  "dev', '  "interval": 60,\n  "dev'), ('attic", "interval": 30', 'attic", "interval": 60'), ('"t2", "kind": "temperature", "room": "bath", "interval": 30', '"t2", "kind": "temperature", "room": "bath", "interval": 60')]),
    ("pom.xml", "bump jackson-databind to 2.17.2", [("ledger</artifactId>\n  <version>2.17.0", "ledger</artifactId>\n  <version>2.17.2")]),
    ("pom.xml", "bump jackson-databind to 2.17.2", [("2.0.13", "2.17.2")]),
    ("pom.xml", "bump jackson-databind to 2.17.2", [("databind</artifactId>\n      <version>2.17.0", "databind</artifactId>\n      <version>2.17.20")]),
    ("staff.json", "ann is 31 now", [('"age": 40', '"age": 31')]),
    ("staff.json", "ben moves to desk 9", [('"desk": 7', '"desk": 9')]),
    ("roles.yaml", "make ben an owner", [("role: admin", "role: owner")]),
    ("roles.yaml", "ben gets 4 cores", [("cpu: 1", "cpu: 4")]),
    ("shops.toml", "Bonn has 6 rooms now", [("rooms = 3", "rooms = 6")]),
    ("shops.toml", "Bonn starts at 10", [("open = 8", "open = 10")]),
    ("room.yaml", "the port of the database is 5433", [("8080", "5433")]),
    ("room.ini", "the database listens on port 5433 now", [("8080", "5433")]),
    ("faq.md", 'after the question where you are, add "Can I park?" with the answer "Yes."', [("The desk.\n", f"The desk.\n\n{PARK}".rstrip("\n") + "\n")]),
    ("faq.md", 'add the question "Can I park?" with the answer "Yes." before the one about the phone', [("**What", f"{PARK}**What")]),
    ("fees.md", "add a row for Di, an adult who pays 9, after Bo", [("| Cy | child | 4 |\n", "| Cy | child | 4 |\n| Di | adult | 9 |\n")]),
    ("club.csv", "add member 6, Fox, a senior who has not paid 60, below Bell", [("Dee,senior,60,yes\n", "Dee,senior,60,yes\n6,Fox,senior,60,no\n")]),
    ("tool.py", "add a function check that returns True before write", [("def main", "def check():\n    return True\n\n\ndef main")]),
    ("tool.py", "add a function check that returns True after read", [("def main", "def check():\n    return True\n\n\ndef main")]),
    ("chart.js", "the constructor should work without values, an empty list is the default then", [("canvas, values)", "canvas)"), ("= values", "= []")]),
    ("chart.js", "draw should always be one pixel wide", [("colour, width = 1)", "colour)"), ("colour, width]", "colour, 1]")]),
    ("tool.py", "read should be strict by default", [(", *, strict=False", ""), (", limit, strict", ", limit, True")]),
    ("tool.py", "write should work without a text", [("write(path, text)", "write(path)"), ("path, text\n", "path\n")]),
    ("tank.c", "fill should ignore negative litres", [(", int most", ""), ("    t->", "    if (litres > 0)\n        t->")]),
]  # fmt: skip


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_place_that_is_named_is_not_asked_about(case):
    name, ask, edits, *text = case
    edit, new = edited(name, ask, edits, text[0] if text else TEXTS[name])
    assert (edit.text, edit.refused) == (new, ())


@pytest.mark.parametrize("case", ASKED, ids=lambda case: f"{case[0]}-{case[1]}-{len(case[2])}")
def test_another_place_than_the_named_one_is_asked_about(case):
    name, ask, edits = case
    edit, _ = edited(name, ask, edits, TEXTS[name])
    assert edit.refused or edit.text == TEXTS[name], edit  # or nothing is written
