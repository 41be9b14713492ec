"""Renames and removals by code of names that mean several things: they are asked about, others are not."""

import pytest

from gguf_spec.edit import EditPlan

# one meaning: the change is made
PLAIN = [
    (
        "a.java",
        "class Box {\n    int n() {\n        return 1;\n    }\n    int f(Box other) {\n        Box[] all = {other};\n        return other.n() + this.n() + n();\n    }\n}\n",
        "Rename the method n to size",
    ),
    (
        "a.ts",
        "class Box {\n  n(): number {\n    return 1;\n  }\n}\nfunction f(box: Box) {\n  return box.n() + new Box().n();\n}\n",
        "Rename the method n to size",
    ),
    (
        "a.js",
        "function area(w, h) {\n  return w * h;\n}\n\nconsole.log(area(1, 2));\n",
        "Rename the function area to surface",
    ),
    (
        "a.js",
        "export function area(w, h) {\n  return w * h;\n}\n\nmodule.exports = { area };\n",
        "Rename the function area to surface",
    ),
    (
        "a.js",
        "class Cart {\n  total() {\n    return this.items.length;\n  }\n  show() {\n    return this.total();\n  }\n}\n\nconst cart = new Cart();\ncart.total();\n",
        "Rename the method total to sum",
    ),
    (
        "a.js",
        "const limit = 3;\nfunction f(a) {\n  if (a > limit) return limit;\n  return a;\n}\n",
        "Rename limit to most",
    ),
    (
        "a.ts",
        "interface User {\n  name: string;\n  age: number;\n}\n\nfunction greet(user: User): string {\n  return `Hi ${user.name}`;\n}\n",
        "Rename the interface User to Person",
    ),
    (
        "a.ts",
        "class A {\n  private count = 0;\n  add(): void {\n    this.count += 1;\n  }\n}\n",
        "Rename count to total",
    ),
    (
        "a.ts",
        "class A {\n  private count: number;\n  add(): void {\n    this.count += 1;\n  }\n}\n",
        "Rename count to total in class A",
    ),
    (
        "a.java",
        "public class Cart {\n    private final List<Item> items = new ArrayList<>();\n\n    public void add(Item item) {\n        items.add(item);\n    }\n\n    public int count() {\n        return items.size();\n    }\n}\n",
        "Rename items to goods",
    ),
    (
        "a.java",
        "public class Cart {\n    public int count() {\n        return 1;\n    }\n    public boolean isEmpty() {\n        return count() == 0;\n    }\n}\n",
        "Rename the method count to size",
    ),
    (
        "a.java",
        "public class Cart {\n    int add(int a) {\n        return a;\n    }\n    int add(int a, int b) {\n        return add(a) + b;\n    }\n}\n",
        "Rename the method add to plus",
    ),
    (
        "a.c",
        'static int length(const char *s);\n\nstatic int length(const char *s) {\n    return s ? 1 : 0;\n}\n\nint main(void) {\n    return length("a");\n}\n',
        "Rename the function length to measure",
    ),
    (
        "a.c",
        "static int n_open = 0;\n\nvoid f(void) {\n    n_open++;\n}\n\nint g(void) {\n    return n_open * n_open;\n}\n",
        "Rename n_open to open_count",
    ),
    (
        "a.cpp",
        "class Store {\npublic:\n    int total() const;\nprivate:\n    int sum = 0;\n};\n\nint Store::total() const {\n    return sum;\n}\n",
        "Rename the method total to amount",
    ),
    (
        "a.cs",
        "class Store\n{\n    public int Total { get; set; }\n\n    public void Add(int n)\n    {\n        Total += n;\n        this.Total += n;\n    }\n}\n",
        "Rename Total to Sum",
    ),
    (
        "a.go",
        "package a\n\nfunc Total(items []int) int {\n\tn := 0\n\tfor _, one := range items {\n\t\tn += one\n\t}\n\treturn n\n}\n\nfunc main() {\n\tprintln(Total(nil))\n}\n",
        "Rename the function Total to Sum",
    ),
    (
        "a.go",
        "package a\n\ntype Cart struct {\n\titems []int\n}\n\nfunc (c *Cart) Total() int {\n\treturn len(c.items)\n}\n\nfunc main() {\n\tc := Cart{}\n\tprintln(c.Total())\n}\n",
        "Rename the method Total to Sum",
    ),
    (
        "a.go",
        "package a\n\ntype Cart struct {\n\titems []int\n}\n\nfunc (c *Cart) Total() int {\n\treturn len(c.items)\n}\n",
        "Rename items to goods",
    ),
    (
        "a.rs",
        'fn area(w: u32, h: u32) -> u32 {\n    w * h\n}\n\nfn main() {\n    println!("{}", area(1, 2));\n}\n',
        "Rename the function area to surface",
    ),
    (
        "a.rs",
        "struct Cart {\n    items: Vec<u32>,\n}\n\nimpl Cart {\n    fn total(&self) -> u32 {\n        self.items.iter().sum()\n    }\n}\n",
        "Rename items to goods",
    ),
    (
        "a.kt",
        "class Cart(val items: List<Int>) {\n    fun total(): Int {\n        return items.size\n    }\n}\n\nfun main() {\n    println(Cart(listOf(1)).total())\n}\n",
        "Rename the method total to sum",
    ),
    (
        "a.kt",
        "fun area(w: Int, h: Int): Int {\n    return w * h\n}\n",
        "Rename the parameter w to width",
    ),
    (
        "a.swift",
        "struct Cart {\n    var items: [Int]\n    func total() -> Int {\n        return items.count\n    }\n}\n",
        "Rename items to goods",
    ),
    (
        "a.php",
        "<?php\nfunction area($w, $h) {\n    return $w * $h;\n}\necho area(1, 2);\n",
        "Rename the function area to surface",
    ),
    ("a.php", "<?php\nfunction area($w, $h) {\n    return $w * $h;\n}\n", "Rename $w to $width"),
    (
        "a.js",
        "async function load(url) {\n  const response = await fetch(url);\n  if (!response.ok) {\n    throw new Error(response.status);\n  }\n  return response.json();\n}\n",
        "Rename response to answer",
    ),
    (
        "a.js",
        "const items = [1, 2];\nfor (const one of items) {\n  console.log(one);\n}\n",
        "Rename one to item",
    ),
    ("a.c", "int f(int a) {\n  int b = a;\n  return b;\n}\n", "Rename b to c in f"),
    (
        "a.java",
        "class A {\n  static final int MAX = 3;\n  int f(int a) {\n    return Math.min(a, MAX);\n  }\n}\n",
        "Rename the constant MAX to LIMIT",
    ),
    (
        "a.js",
        "function a(x) {\n  return x;\n}\nfunction b(x) {\n  return x;\n}\n",
        "Rename x to y in the function b",
    ),
    (
        "a.scala",
        "object A {\n  def area(w: Int): Int = {\n    w * w\n  }\n}\n",
        "Rename area to surface",
    ),
    (
        "a.dart",
        "int area(int w, int h) {\n  return w * h;\n}\n\nvoid main() {\n  print(area(1, 2));\n}\n",
        "Rename the function area to surface",
    ),
    (
        "a.ts",
        "export const fetchUser = async (id: string): Promise<User> => {\n  return api.get(id);\n};\n\nfetchUser('a');\n",
        "Rename fetchUser to loadUser",
    ),
    (
        "a.ts",
        "enum Color {\n  Red,\n  Green,\n}\n\nconst c = Color.Red;\n",
        "Rename Red to Scarlet",
    ),
    ("a.ts", "enum Color {\n  Red = 'r',\n}\n\nconst c = Color.Red;\n", "Rename Color to Paint"),
]
# several meanings, or what is left behind is used
DOUBTFUL = [
    (
        "a.kt",
        "class Registry {\n    val users = mutableListOf<User>()\n    fun add(user: User) {\n        users.add(user)\n    }\n}\n",
        "Rename the function add to register",
    ),
    (
        "a.java",
        "class Box {\n    List<Item> items;\n    void add(Item item) {\n        items.add(item);\n    }\n}\n",
        "Rename the method add to put",
    ),
    (
        "a.go",
        "type Log struct {\n\tout Writer\n}\n\nfunc (l *Log) Write(a string) {\n\tl.out.Write(a)\n}\n",
        "Rename the method Write to Put",
    ),
    (
        "a.rs",
        "impl Cache {\n    fn clear(&mut self) {\n        self.entries.clear();\n    }\n}\n",
        "Rename the function clear to reset",
    ),
    ("a.js", "function f(size) {\n  return this.size + size;\n}\n", "Rename size to count"),
    (
        "a.js",
        "function f(items) {\n  const sum = items.length;\n  return { sum, items };\n}\n",
        "Rename sum to total",
    ),
    (
        "a.js",
        "function f(items) {\n  const sum = items.length;\n  return { sum: sum };\n}\n",
        "Rename sum to total",
    ),
    ("a.js", "import { sum } from './a.js';\n\nconst x = sum(1);\n", "Rename sum to total"),
    ("a.js", "const { name, age } = user;\nconsole.log(name);\n", "Rename name to title"),
    ("a.js", "const go = (x) => x + 1;\nconst halt = (x) => x - 1;\n", "Rename x to y"),
    (
        "a.js",
        "function render(a) {\n  return a;\n}\nview.render();\nrender(1);\n",
        "Rename the function render to draw",
    ),
    (
        "a.js",
        "let n = 1;\nfunction f() {\n  return n + 1;\n}\nconsole.log(n);\n",
        "Rename n to m in the function f",
    ),
    (
        "a.ts",
        "interface A {\n  name: string;\n}\ninterface B {\n  name: string;\n}\n",
        "Rename name to title",
    ),
    (
        "a.ts",
        "function f(id: string) {\n  return id;\n}\nfunction g(id: string) {\n  return id;\n}\n",
        "Rename id to key",
    ),
    (
        "a.java",
        "class A {\n  int f(int n) {\n    return n;\n  }\n  int g(int n) {\n    return n;\n  }\n}\n",
        "Rename n to m",
    ),
    (
        "a.java",
        "class A {\n  int total() {\n    return 1;\n  }\n}\nclass B {\n  int total() {\n    return 2;\n  }\n}\n",
        "Rename the method total to sum",
    ),
    (
        "a.cs",
        "class A\n{\n    int Count(int n)\n    {\n        return n;\n    }\n    int Sum(int n)\n    {\n        return n;\n    }\n}\n",
        "Rename n to m",
    ),
    (
        "a.cs",
        "class A\n{\n    private int count;\n    public int Count() => count;\n    public void Set(int count)\n    {\n        this.count = count;\n    }\n}\n",
        "Rename the field count to total",
    ),
    (
        "a.go",
        "package a\n\nfunc f(n int) int {\n\treturn n\n}\n\nfunc g(n int) int {\n\treturn n\n}\n",
        "Rename n to m",
    ),
    (
        "a.go",
        "package a\n\nfunc f() {\n\terr := a()\n\tprintln(err)\n}\n\nfunc g() {\n\terr := b()\n\tprintln(err)\n}\n",
        "Rename err to problem",
    ),
    (
        "a.go",
        "package a\n\nfunc (c *Cart) Total() int {\n\treturn 1\n}\n\nfunc (o *Order) Total() int {\n\treturn 2\n}\n",
        "Rename the method Total to Sum",
    ),
    (
        "a.go",
        "type A struct {\n\tName string\n}\n\ntype B struct {\n\tName string\n}\n",
        "Rename Name to Title",
    ),
    (
        "a.rs",
        "fn f(n: u32) -> u32 {\n    n\n}\n\nfn g(n: u32) -> u32 {\n    n\n}\n",
        "Rename n to m",
    ),
    (
        "a.rs",
        "impl A {\n    fn new() -> A {\n        A {}\n    }\n}\nimpl B {\n    fn new() -> B {\n        B {}\n    }\n}\n",
        "Rename the function new to create",
    ),
    (
        "a.rs",
        "struct A {\n    len: u32,\n}\nimpl A {\n    fn len(&self) -> u32 {\n        self.len\n    }\n}\n",
        "Rename the field len to size",
    ),
    (
        "a.kt",
        "fun f(n: Int): Int {\n    return n\n}\n\nfun g(n: Int): Int {\n    return n\n}\n",
        "Rename n to m",
    ),
    (
        "a.kt",
        "class A {\n    val size = 1\n    fun size(): Int {\n        return size\n    }\n}\n",
        "Rename the method size to count",
    ),
    (
        "a.cpp",
        "struct A {\n    int size;\n    int size_of() { return size; }\n};\nint f(int size) {\n    return size;\n}\n",
        "Rename size to count",
    ),
    (
        "a.cpp",
        "int A::total() {\n    return 1;\n}\nint B::total() {\n    return 2;\n}\n",
        "Rename the method total to sum",
    ),
    (
        "a.c",
        "struct list { int len; };\nint f(int len) {\n  return len;\n}\nint g(struct list *l) {\n  return l->len;\n}\n",
        "Rename len to size",
    ),
    (
        "a.c",
        "int f(int a) {\n  int n = a;\n  return n;\n}\nint g(int a) {\n  int n = a;\n  return n;\n}\n",
        "Rename n to m",
    ),
    (
        "a.swift",
        "func f(n: Int) -> Int {\n    return n\n}\nfunc g(n: Int) -> Int {\n    return n\n}\n",
        "Rename n to m",
    ),
    (
        "a.php",
        "<?php\nfunction f($n) {\n    return $n;\n}\nfunction g($n) {\n    return $n;\n}\n",
        "Rename $n to $m",
    ),
    (
        "a.php",
        "<?php\nfunction f() {\n    $n = 1;\n    return $n;\n}\nfunction g() {\n    $n = 2;\n    return $n;\n}\n",
        "Rename $n to $m",
    ),
    ("a.dart", "int f(int n) {\n  return n;\n}\nint g(int n) {\n  return n;\n}\n", "Rename n to m"),
    (
        "a.sh",
        "f() {\n  local n=1\n  echo $n\n}\ng() {\n  local n=2\n  echo $n\n}\n",
        "Rename n to m",
    ),
    ("a.rb", "def f(n)\n  n\nend\n\ndef g(n)\n  n\nend\n", "Rename n to m"),
    (
        "a.lua",
        "function f(n)\n  return n\nend\n\nfunction g(n)\n  return n\nend\n",
        "Rename n to m",
    ),
    (
        "a.yaml",
        "services:\n  db:\n    image: pg\n  web:\n    depends_on:\n      - db\n",
        "Rename the service db to store",
    ),
    (
        "a.yaml",
        "services:\n  db:\n    image: pg\n  web:\n    depends_on:\n      - db\n",
        "Remove the service db",
    ),
    ("a.toml", "[a]\nx = 1\n\n[a.b]\ny = 2\n\n[c]\nz = 3\n", "Remove the table [a]"),
    ("a.toml", "[a]\nx = 1\n\n[[a.b]]\ny = 2\n\n[c]\nz = 3\n", "Remove the section a"),
    (
        "a.js",
        "function total(a) {\n  return a;\n}\n\nfunction b() {\n  return total(1);\n}\n",
        "Remove the function total",
    ),
    (
        "Makefile",
        "all: build docs\n\nbuild:\n\techo b\n\ndocs:\n\techo d\n",
        "Remove the target docs",
    ),
    ("a.sh", "f() {\n  echo 1\n}\n\nf\n", "Remove the function f"),
]


@pytest.mark.parametrize(("name", "text", "ask"), PLAIN)
def test_a_name_with_one_meaning_is_renamed(name, text, ask):
    edit = EditPlan(text, ask, name=name).result_by_code()
    assert edit.hunks and not edit.refused, edit


@pytest.mark.parametrize(("name", "text", "ask"), DOUBTFUL)
def test_a_name_with_several_meanings_is_asked_about(name, text, ask):
    edit = EditPlan(text, ask, name=name).result_by_code()
    assert edit.hunks and edit.refused, edit


@pytest.mark.parametrize(("name", "text", "ask"), [one for one in DOUBTFUL if "Rename" in one[2]])
def test_all_of_its_meanings_are_renamed_if_the_request_says_so(name, text, ask):
    edit = EditPlan(text, f"{ask} everywhere", name=name).result_by_code()
    assert edit.hunks and (not edit.refused or "services" in text or "import" in text), edit


def test_a_function_begins_behind_a_value_with_a_type_in_brackets():
    text = "class A {\n    val all = listOf<B>()\n    fun add(b: B) {\n        f(b)\n    }\n}\n"
    edit = EditPlan(text, "Remove the function add", name="a.kt").result_by_code()
    assert edit.text == "class A {\n    val all = listOf<B>()\n}\n"


def test_an_annotated_method_is_a_definition():
    text = "class A {\n    @Override\n    public int n() {\n        return 1;\n    }\n}\nclass B {\n    int n() {\n        return 2;\n    }\n}\n"
    edit = EditPlan(text, "Rename the method n to m", name="a.java").result_by_code()
    assert "more than one function" in edit.refused[0]
