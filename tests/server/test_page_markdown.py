"""Markdown on the page: the elements of an answer, and no markup from its text."""

import pytest

from tests.support.browser import needs_browser, pieces

pytestmark = needs_browser

SHOW = "const view = new it.MarkdownView(); view.show(arguments[0]); return view.place.innerHTML"

CASES = {
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "# A\n## B ##\n### C": "<h3>A</h3><h4>B</h4><h5>C</h5>",
    "#no heading": "<p>#no heading</p>",
    "**b** *i* _i_ ***bi*** ~~d~~ `c`": "<p><strong>b</strong> <em>i</em> <em>i</em> <em><strong>bi</strong></em> <del>d</del> <code>c</code></p>",
    "**b *i***": "<p><strong>b <em>i</em></strong></p>",
    "**Use `**kw`**": "<p><strong>Use <code>**kw</code></strong></p>",
    "2 * 3 * 4, snake_case_name, __init__": "<p>2 * 3 * 4, snake_case_name, <strong>init</strong></p>",
    "`` a`b `` \\*no\\*": "<p><code>a`b</code> *no*</p>",
    "- a\n- b\n  - c\n- d": "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "1. a\n\n   more\n2. b": "<ol><li>a<p>more</p></li><li>b</li></ol>",
    "- [ ] a\n- [x] b": "<ul><li>☐ a</li><li>☑ b</li></ul>",
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n\n---\nb": "<p>a</p><hr><p>b</p>",
    "a<br>b &amp; <b>c</b>": "<p>a<br>b &amp;amp; &lt;b&gt;c&lt;/b&gt;</p>",
}
LINK = '<a title="{0}" href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'
LINKS = {
    "[a **b**](https://x.test/y)": LINK.format("https://x.test/y", "a <strong>b</strong>"),
    "[a](https://x.test/(y) 'title') z": LINK.format("https://x.test/(y)", "a") + " z",
    "<https://x.test/>": LINK.format("https://x.test/", "https://x.test/"),
    "(see https://x.test/y).": "(see " + LINK.format("https://x.test/y", "https://x.test/y") + ").",
    "![a](https://x.test/i.png)": LINK.format("https://x.test/i.png", "a (image, not loaded)"),
}
HOSTILE = [
    r"\\(\\text{<img src=x onerror=alert(1)>}\\) $\\href{javascript:alert(1)}{x}$",
    "$$\n<script>alert(1)</script>\n$$",
    "<script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    '<svg onload="document.title=1"><a href="javascript:1">x</a></svg>',
    "[a](javascript:document.title=1)",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java\tscript:alert(1))",
    "[a](data:text/html,<script>1</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:x) [d](//evil.test/x) [e](/v1/models)",
    "<javascript:alert(1)>",
    "![a](x onerror=alert(1)) ![b](http://evil.test/pixel.gif) ![c](//evil.test/pixel.gif)",
    '[a](https://x.test/"onmouseover="alert(1))',
    "```<img src=x>\n<img src=x onerror=alert(1)>\n```",
    "| <img src=x onerror=1> | b |\n|---|---|\n| <iframe src=//evil.test> | <style>*{color:red}</style> |",
    "<style>@import url(//evil.test)</style><link rel=stylesheet href=//evil.test><base href=//evil.test>",
    "<form action=//evil.test><button>x</button></form><meta http-equiv=refresh content=0>",
    "[<img src=x onerror=alert(1)>](https://x.test)",
]
# Each has many beginnings without an end, or many levels; a search that starts again at each of
# them would take hours.
LONG = [sign * 60_000 for sign in "*_`[(<>~#|-\\!$"] + [
    "**a " * 20_000, "*a" * 30_000, "[a](" * 20_000, "![" * 30_000, "> " * 20_000, "- " * 20_000,
    "a\n" * 30_000, "- a\n" * 20_000, "|a|b|\n|-|-|\n" + "|x|y|\n" * 10_000, "`a``b" * 10_000,
    "https://" * 10_000, "<br" * 20_000, "# " + " " * 60_000 + "#", "\t" * 60_000 + "x",
    "".join(f"{' ' * n}- a\n" for n in range(300)), "***a" * 15_000, "```\n" * 20_000,
    "\\( " * 20_000, "$a " * 20_000, "$$a\n" * 20_000, "\\[" * 30_000, "$" + "{" * 3000 + "$", "```py\n" + "'" * 40_000,
    "- " + " " * 60_000, "---" + " " * 60_000 + "x", "`" + " x" * 30_000,
    ("**a " * 4_500 + "\n\n") * 5, ("[a](" * 4_000 + "\n\n") * 30, ("`a``b" * 3_000 + "\n\n") * 30,
]  # fmt: skip


def test_blocks_and_text(page):
    for text, html in CASES.items():
        assert page.module("markdown.js", SHOW, text) == html, text


def test_links(page):
    for text, html in LINKS.items():
        assert page.module("markdown.js", SHOW, text) == f"<p>{html}</p>", text
    assert (
        page.module("markdown.js", SHOW, "[[a](https://x.test/)](https://y.test/)").count("<a ")
        == 1
    )


def test_tables(page):
    html = page.module("markdown.js", SHOW, "| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 |")
    assert '<th scope="col" class="center">a</th><th scope="col" class="end">b</th>' in html
    assert '<td class="center">1</td><td class="end"><code>x|y</code></td>' in html
    assert '<td class="center">2</td><td class="end"></td>' in html
    assert "<table>" not in page.module("markdown.js", SHOW, "a | b\n- c | d")


def test_code(page):
    html = page.module("markdown.js", SHOW, "```python\nif a < b:\n    pass\n```\nthen")
    word = '<span class="word">{}</span>'.format
    assert f"<code>{word('if')} a &lt; b:\n    {word('pass')}</code>" in html
    assert "<figcaption>python<button" in html
    assert html.endswith("<p>then</p>")
    inside = page.module("markdown.js", SHOW, "````\n```\nx\n```\n````")
    assert "<code>```\nx\n```</code>" in inside
    assert "<code>x</code>" in page.module("markdown.js", SHOW, "1. a:\n   ```\n   x\n   ```")
    assert "<code>open" in page.module("markdown.js", SHOW, "~~~\nopen"), "an answer that streams"


COLOURS = {
    ("python", 'x = "a # b"  # c\nif_ = None'): [("string", '"a # b"'), ("comment", "# c"), ("word", "None")],
    ("py", '"""a\nif\n"""\nreturn'): [("string", '"""a\nif\n"""'), ("word", "return")],
    ("js", "const a = `b\n${c}`; // d"): [("word", "const"), ("string", "`b\n${c}`"), ("comment", "// d")],
    ("c", "/* a\nint */ int b; // 'c"): [("comment", "/* a\nint */"), ("word", "int"), ("comment", "// 'c")],
    ("sql", "SELECT 'a' -- b"): [("word", "SELECT"), ("string", "'a'"), ("comment", "-- b")],
    ("json", '{"a": true}'): [("string", '"a"'), ("word", "true")],
    ("", "if x: 'y'"): [], ("whatever", "if x: 'y'"): [],
}  # fmt: skip


def test_code_has_three_colours(page):
    look = """const view = new it.MarkdownView(); view.show("```" + arguments[0] + "\\n" + arguments[1] + "\\n```");
        const code = view.place.querySelector("pre code");
        return [code.textContent, [...code.children].map((one) => [one.className, one.textContent])]"""
    for (language, text), spans in COLOURS.items():
        shown, found = page.module("markdown.js", look, language, text)
        assert (shown, [tuple(one) for one in found]) == (text, spans), (language, text)


FORMULAS = {
    r"\(x^2\)": "<msup><mi>x</mi><mn>2</mn></msup>",
    r"a \(\frac{1}{2}\) b": "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>",
    r"$x_i^{n+1}$": "<msubsup><mi>x</mi><mi>i</mi><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msubsup>",
    r"$\sqrt[3]{x} \leq \pi$": "<mroot><mrow><mi>x</mi></mrow><mrow><mn>3</mn></mrow></mroot><mo>≤</mo><mi>π</mi>",
    r"$$\sum_{i=1}^n i$$": "<munderover><mo>∑</mo>",
    r"\[ \left( \begin{matrix} 1 & 2 \\ 3 & 4 \end{matrix} \right) \]": "<mtr><mtd><mrow><mn>3</mn></mrow></mtd><mtd>",
    "$$\n- a\n+ b\n$$": "<mo>−</mo><mi>a</mi><mo>+</mo><mi>b</mi>",  # no list
    r"\(\text{if } x \in \mathbb{R}\)": "<mtext>if&nbsp;</mtext><mi>x</mi><mo>∈</mo><mi>ℝ</mi>",
    r"$f'(x)\,dx$": "<msup><mi>f</mi><mrow><mo>′</mo></mrow></msup>",
}


def test_formulas_are_drawn(page):
    for text, part in FORMULAS.items():
        html = page.module("markdown.js", SHOW, text)
        assert part in html and "<math" in html, (text, html)
    assert 'display="block"' in page.module("markdown.js", SHOW, r"\[x\]")


def test_an_unknown_formula_is_shown_as_it_was_written(page):
    for inside in (
        r"\unknown{x}",
        r"\frac{1}",
        "{" * 100,
        r"\left(",
        r"x^^2",
        r"\begin{tikz}a\end{tikz}",
        r"\href{javascript:1}{x}",
    ):
        html = page.module(
            "markdown.js",
            "const view = new it.MarkdownView(); view.show(arguments[0]); return view.place.textContent",
            rf"\({inside}\)",
        )
        assert html == inside, inside


def test_money_and_signs_are_no_formulas(page):
    for text in (
        "It costs $5 and $6.",
        "$ x $",
        "a $5",
        "US$3, US$4",
        r"\$x\$",
        "`$x$`",
        "a \\( b",
    ):
        assert "<math" not in page.module("markdown.js", SHOW, text), text


def test_earlier_elements_stay_while_the_text_grows(page):
    grow = """const view = new it.MarkdownView(); view.show("one\\n\\ntwo"); const first = view.place.firstChild;
        view.show("one\\n\\ntwo and more\\n\\nthree"); return [view.place.firstChild === first, view.place.textContent]"""
    assert page.module("markdown.js", grow) == [True, "onetwo and morethree"]


def test_every_prefix_can_be_shown(page):
    text = "# T\n\n**a** [b](https://x.test) `c`\n\n- x\n  1. y\n\n| a |\n|---|\n| b |\n\n```py\nz\n```"
    same = """const view = new it.MarkdownView(); const text = arguments[0];
        for (let n = 0; n <= text.length; n += 1) view.show(text.slice(0, n));
        const whole = new it.MarkdownView(); whole.show(text); return view.place.innerHTML === whole.place.innerHTML"""
    assert page.module("markdown.js", same, text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(page, text):
    look = """const view = new it.MarkdownView(); view.show(arguments[0]); document.querySelector("#thread").append(view.place);
        const all = [...view.place.querySelectorAll("*")];
        return [[...new Set(all.map((one) => one.localName))], all.flatMap((one) => [...one.attributes].map((a) => a.name)),
            all.filter((one) => one.href !== undefined).map((one) => one.protocol)]"""
    names, attributes, protocols = page.module("markdown.js", look, text)
    allowed = {
        "math",
        "mrow",
        "mtext",
        "mo",
        "mi",
        "mn",
        "p",
        "a",
        "code",
        "pre",
        "figure",
        "figcaption",
        "button",
        "span",
        "div",
        "em",
    }
    assert {*names} <= allowed | {"table", "thead", "tbody", "tr", "th", "td"}
    assert {*attributes} <= {
        "href",
        "title",
        "target",
        "rel",
        "class",
        "type",
        "tabindex",
        "role",
        "aria-label",
        "display",
        "stretchy",
        "scope",
    }
    assert {*protocols} <= {"https:", "http:"}
    assert page.script("return document.title") != "owned"


def test_a_hostile_answer_causes_no_request(page):
    """The fixture checks the requests, and that the policy had nothing to stop."""
    page.fake(pieces("\n\n".join(HOSTILE), thought="\n".join(HOSTILE)))
    page.answer("\n".join(HOSTILE[:3]).replace("\n", " "))
    page.reload()
    assert page.count("main :is(script, img, iframe, style, link, form, svg:not(.icon), meta)") == 0
    assert page.count("main a[href^=http]") >= 2


def test_long_texts_take_no_longer_than_they_must(page):
    """The driver's limit of 30 seconds is for each."""
    for text in LONG:
        assert page.module("markdown.js", f"{SHOW}.length", text) > 0, text[:10]


def test_a_search_that_fails_is_not_repeated(page):
    count = """let n = 0; const get = Map.prototype.get;
        Map.prototype.get = function (key) { n += 1; return get.call(this, key) };
        try { new it.MarkdownView().show(arguments[0]) } finally { Map.prototype.get = get } return n"""
    text = "**a " * 4_500
    assert 0 < page.module("markdown.js", count, text) < 10 * len(text), "steps of the searches"


def test_the_policy_blocks_markup_and_foreign_images(page):
    stopped = "try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name }"
    assert page.script(stopped) == "TypeError"
    page.script(
        "const one = document.createElement('img'); one.src = 'http://evil.test/x.png'; document.body.append(one)"
    )
    assert any("evil.test" in one for one in page.complaints())
    page.requests()  # Chromium also lists those that it does not send
