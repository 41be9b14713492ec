"""Hooks of mkdocs (see .mkdocs.yml).

Files of the repository that pages link to, such as examples, become part of the site, under files/. The page about
the architecture ends with a list of the package's files. The entries of the Python API, which are plain
Markdown in docs/python-api.md so that it can be read without a site, are replaced by those of mkdocstrings.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(
    r"<!-- (::: \S+)( \(with inherited members\))? -->\n.*?(?=\n<!-- :::|\n## |\Z)", re.DOTALL
)
INHERITED = "\n    options:\n      inherited_members: true"
LINK = re.compile(r"(?<=\]\()\.\./([^)#]+)")
# What the search shows after the pages for users, by the beginning of a page's name. Copies of files are not found at all.
LAST = {
    "python-api": 0.2,
    "decisions/": 0.2,
    "benchmarks": 0.4,
    "architecture": 0.4,
    "contributing": 0.4,
}


def on_files(files, config):
    """Add the files that Markdown pages link to outside of docs/, and the script of the search."""
    script = str(ROOT / "scripts" / "docs" / "search.js")
    files.append(File.generated(config, "search.js", abs_src_path=script))
    for page in list(files.documentation_pages()):
        if "/" in page.src_uri:  # its links lead to pages above it
            continue
        for name in LINK.findall(page.content_string):
            path = place(name)
            if not files.get_file_from_path(path):
                source = str(ROOT / posixpath.normpath(name))
                files.append(
                    File.generated(
                        config, path, abs_src_path=source, inclusion=InclusionLevel.NOT_IN_NAV
                    )
                )
    return files


def rank(page):
    """Tell the search how much the words of a page count."""
    name = page.file.src_uri
    boost = next((boost for start, boost in LAST.items() if name.startswith(start)), 1)
    is_copy = name.startswith("files/") and name != "files/CHANGELOG.md"
    page.meta["search"] = (
        {"exclude": True} if is_copy else {"boost": 0.2 if "CHANGELOG" in name else boost}
    )


def on_page_markdown(markdown, page, **_):
    """Let links to such files lead to their copies, and mkdocstrings write the API. A page that is itself a copy loses its links."""
    rank(page)
    if page.file.src_uri.startswith("files/"):
        return re.sub(r"\[([^\]]+)\]\((?!http)[^)]+\)", r"\1", markdown)
    if "/" in page.file.src_uri:
        return markdown
    if page.file.src_uri == "python-api.md":
        return ENTRY.sub(lambda found: found[1] + (INHERITED if found[2] else "") + "\n", markdown)
    if page.file.src_uri == "architecture.md":
        markdown += (
            "\n## Files {data-search-exclude=all}\n\n| file | contents |\n|---|---|\n"
            + "\n".join(listed())
        )
    return LINK.sub(lambda found: place(found[1]), markdown)


def listed():
    """Yield a row of a table for each file of the package: the first sentence of its docstring."""
    package = ROOT / "gguf_spec"
    for path in sorted(package.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        sentence = re.split(r"(?<=[.?])\s", doc, maxsplit=1)[0].rstrip(".").replace("\n", " ")
        yield f"| `{path.relative_to(package)}` | {sentence} |"


def place(name):
    """Return the place of a file of the repository in the site, which leaves out folders that begin with a dot."""
    return "files/" + posixpath.normpath(name).lstrip(".")
