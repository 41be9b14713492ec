"""The documentation: links lead somewhere, commands and options exist, and the site builds without a warning. No network is used."""

import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from gguf_spec import errors
from gguf_spec.cli import cli, foreign
from gguf_spec.cli.habits import HIDDEN_NAMES
from tests.support import children

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "build"))
from manual import manual

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in (
        ".",
        ".github",
        "docs",
        "docs/decisions",
        "gguf_spec/data/tales",
        *(ROOT / "plugins").glob("*/"),
    )
    for path in (ROOT / folder).glob("*.md")
)
GENERATED_OR_HISTORY = {
    "docs/cli.md",
    "docs/decisions/log.md",
    "docs/python-api.md",
    "CHANGELOG.md",
}
# Options of other programs: docker, xcode-select, scripts/test, llama.cpp, aider, llm.
OTHER_OPTIONS = {
    option
    for path in [*(ROOT / "scripts").rglob("*.py"), ROOT / "tests" / "conftest.py"]
    for option in re.findall(r'"(--[a-z][a-z-]+)"', path.read_text(encoding="utf-8"))
}
OTHER_OPTIONS |= {"--no-auto-commits", "--no-gitignore", "--edit-format"}  # of aider
OTHER_OPTIONS |= {"--build-arg", "--install", "--options", "--schema"}  # of Docker, llm
OTHER_OPTIONS |= {"--verifytypes"}  # of pyright
# of llama.cpp
OTHER_OPTIONS |= {
    name
    for command in ("serve", "generate")
    for one in foreign.foreign_options(command, frozenset())
    for name in one.opts
}
OTHER_OPTIONS |= {"--onefile", "--find-links", "--no-index"}  # of PyInstaller, pip
OTHER_OPTIONS |= {"--include-distribution-metadata", "--include-package", "--include-package-data"}
OTHER_OPTIONS |= {"--mode", "--nofollow-import-to", "--noinclude-custom-mode"}  # of Nuitka
OTHER_OPTIONS |= {"--all", "--variant"}  # of scripts/test
OTHER_OPTIONS |= {"--gpu", "--images", "--native", "--ready-made"}  # of scripts/run
# What is looked up and not read may be long; the log of experiments is not part of the site.
LONG_PAGES = {"docs/cli.md", "docs/decisions/log.md", "docs/python-api.md"}
MISSING = [
    name for name in ("mkdocs", "material", "mkdocstrings") if not importlib.util.find_spec(name)
]


def text_of(page):
    """Return a page without its code blocks and code spans, which hold no links and no headings."""
    return re.sub(
        r"`[^`\n]*`",
        lambda code: "x" * len(code[0]),
        re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8")),
    )


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them and the site's slugify does."""
    text = re.sub(r"(?ms)^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"))
    headings = (
        re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", line)
        for line in re.findall(r"(?m)^#{1,6} (.+)$", text)
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff")
def test_the_manual_page_has_every_command(tmp_path):
    """A wheel has it, made from docs/cli.md."""
    page = tmp_path / "gguf-spec.1"
    page.write_text(manual((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), "1.0"))
    command = ["groff", "-man", "-ww", "-Tascii", "-P-cbou", page]
    done = children.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    for path, _ in cli.paths():
        assert f"\nGGUF-SPEC {path.upper()}\n" in done.stdout
    assert '\n         gguf-spec generate "Why is the sky blue?"\n' in done.stdout
    # a paragraph that was cut for docs/cli.md is one again, and so is a word
    assert "rm are those of models.\n" in page.read_text()
    assert "chrome-extension://*" in done.stdout


def dead_links(page):
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", text_of(page)):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (
            anchor and anchor not in anchors(target.resolve().relative_to(ROOT))
        ):
            yield link


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert list(dead_links(page)) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.md").write_text(
        "# One `two`\n[a](#one-two) [b](#one) [c](b.md) [d](a.md#one-two) `[e](no.md)`\n",
        encoding="utf-8",
    )
    assert list(dead_links("a.md")) == ["#one", "b.md"]


def test_troubleshooting_has_each_error_and_each_check_of_doctor():
    rows = re.findall(
        r"(?m)^\| ([^|]+) \|", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    )
    first = {name.strip(" `") for row in rows for name in row.split(",")}
    bases = {"GgufSpecError", "ModelError"}  # which nothing raises
    classes = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.GgufSpecError)
    }
    assert classes - bases - first == set()
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "gguf_spec" / "doctor").glob("*.py")
    )
    checks = set(re.findall(r'\bCheck\(\s*"([^"]+)"', source))
    assert len(checks) > 15
    assert checks - first == set()


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_pages_are_short_enough_to_read(page):
    lines = len((ROOT / page).read_text(encoding="utf-8").splitlines())
    assert (lines > 300) == (page in LONG_PAGES)


def commands(command, path=()):
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in GENERATED_OR_HISTORY])
def test_commands_and_options_exist(page):
    text, known = (ROOT / page).read_text(encoding="utf-8"), dict(commands(cli))
    named = re.findall(r"(?:(?<=`)gguf-spec|scripts/run) ([a-z]+)(?: ([a-z]+))?", text)
    assert [
        one
        for one in named
        if (one[0],) not in known or (one[0] == "models" and one[1] and one not in known)
    ] == []
    options = {
        option
        for command in known.values()
        for one in command.params
        for option in (*one.opts, *one.secondary_opts, *HIDDEN_NAMES.get(one.name, ()))
    }
    wanted = {option.rstrip("-") for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert wanted - options - OTHER_OPTIONS - {"--help", "--version"} == set()


def test_every_example_is_in_the_documentation():
    page = "".join(
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in (
            "desktop-apps.md",
            "edge-devices.md",
            "edit.md",
            "embedding.md",
            "quickstart.md",
            "several-machines.md",
        )
    )
    for path in (ROOT / "scripts" / "examples").iterdir():
        assert path.is_dir() or f"(../scripts/examples/{path.name})" in page


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")
@pytest.mark.parametrize("page", [one for one in PAGES if one != "CHANGELOG.md"])
def test_files_of_the_repository_that_a_page_names_exist(page):
    """A file that is gone is named without its folder, and said to be gone."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = r"(?<![\w/.-])((?:tests|scripts|gguf_spec|docs|plugins)/[\w./-]+\.\w+)"
    assert [one for one in re.findall(named, text) if not (ROOT / one).exists()] == []
    assert "LLAMA_FACTS" not in text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site without a network, and return its folder."""
    folder = tmp_path_factory.mktemp("docs")
    dead = "http://127.0.0.1:9"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": dead,
        "https_proxy": dead,
    }
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        str(ROOT / ".mkdocs.yml"),
        "-d",
        str(folder / "site"),
    ]
    done = children.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder / "site"


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")
def test_the_site_builds_without_a_warning_or_a_network(site):
    api = (site / "python-api.html").read_text(encoding="utf-8")
    assert (
        "doc-signature" in api and "<!-- :::" not in api and "<p>:::" not in api
    )  # mkdocstrings wrote it
    for name in ("gguf_spec_compat.llama.Llama", "gguf_spec.runtime.llm.LLM"):
        assert f'id="{name}.tokenize"' in api  # of a base class that is not public
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?(https?:[^\">\s]+)",
            page.read_text(encoding="utf-8"),
        )
        assert loaded == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*[\"']?https?:", style.read_text(encoding="utf-8")
        )


# What users type, and the section that answers it.
QUESTIONS = {
    "why is it slow": "troubleshooting.html#why-is-it-slow-or-not-faster",
    "use with cursor": "clients.html#cursor",
    "out of memory": "questions.html#out-of-memory",
    "stop a model from answering twice": "questions.html#why-does-it-answer-twice-or-repeat-itself",
    "run without internet": "offline.html",
    "which model for 8 gb": "which-model.html",
    "undo edit": "edit.html#undo-an-edit",
    "gpu": "gpu.html",
    "json output": "tools-and-json.html#json-schema",
    "keep model in memory": "server.html#keep-a-model-in-memory-or-unload-it",
    "how to install": "quickstart.html#install-with-pip-or-uv",
    "use my own gguf file": "quickstart.html#your-own-gguf-files",
    "use ollama models": "models.html#what--m-takes-files-names-models-of-ollama-and-lm-studio",
    "change the port": "server.html#address-port-and-api-key",
    "tool calling": "tools-and-json.html#tools",
    "same answer every time": "questions.html#the-same-answer-each-time-or-another-one",
    "api key": "server.html#address-port-and-api-key",
    "prompt is too long": "server.html#the-length-of-the-context-and-prompts-that-are-too-long",
    "how many users at once": "server.html#several-requests-at-once",
    "continue after a crash": "batch.html#after-an-interruption-or-a-crash",
    "system prompt": "questions.html#set-a-system-prompt",
    "windows": "windows-macos.html",
    "vs code autocomplete": "clients.html#llamavim-and-llamavscode-autocomplete-in-vim-and-vs-code",
    "update to a new version": "update-remove.html",
    "uninstall": "update-remove.html#remove-uninstall",
    "use from python": "embedding.html",
}


# What strangers ask first -> the page that is shown first, and answers above its first heading or in that section.
FIRST = {
    "which-model.html": ("8 gb", "which model for 8 gb", "16 gb ram", "32gb"),
    "gpu.html": ("gpu", "cuda", "use my nvidia gpu"),
    "images.html": ("images", "image", "vision", "ask about a picture"),
    "desktop-apps.html": ("pyinstaller", "freeze my app with pyinstaller"),
    "several-users.html": ("several users", "multiple users one server", "how many users at once"),
    "small-boards.html": ("pi", "raspberry pi", "arm board"),
    "windows-macos.html": ("mac", "macos", "apple silicon", "windows", "wsl"),
    "proxy.html": ("proxy", "behind a proxy", "https_proxy", "nginx reverse proxy"),
    "offline.html": ("offline", "run without internet", "install offline", "air gapped"),
    "update-remove.html": ("update", "upgrade", "update to a new version", "remove", "uninstall"),
    "edit.html": ("edit", "edit a file", "undo edit"),
}


def shown(site, questions):
    """Return what the search of the site shows for each question: pages, each with its sections."""
    script = ROOT / "tests" / "support" / "site_search.js"
    done = children.run(
        ["node", script, site],
        input="".join(f"{question}\n" for question in questions),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")
@pytest.mark.skipif(not shutil.which("node"), reason="no node")
def test_the_search_of_the_site_answers_what_users_type(site):
    """The section is one of the first two of one of the first three pages."""
    found = [
        [section for page in pages[:3] for section in page[:2]] for pages in shown(site, QUESTIONS)
    ]
    assert [
        (question, sections)
        for (question, answer), sections in zip(QUESTIONS.items(), found, strict=True)
        if answer not in sections
    ] == []


@pytest.mark.full
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} is not installed")
@pytest.mark.skipif(not shutil.which("node"), reason="no node")
def test_the_search_shows_the_page_for_users_first(site):
    asked = [(question, page) for page, questions in FIRST.items() for question in questions]
    found = shown(site, [question for question, _ in asked])
    wrong = [
        (question, pages[0][0] if pages else None)
        for (question, page), pages in zip(asked, found, strict=True)
        if not pages or pages[0][0].split("#")[0] != page
    ]
    assert wrong == []
