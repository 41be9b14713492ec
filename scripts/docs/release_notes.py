"""Print the section of CHANGELOG.md about a version, for the page of its release: `.venv/bin/python scripts/docs/release_notes.py [VERSION]`.

VERSION is that of the package, with or without a `v` before it, as in tags; another one is an error.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section(text: str, version: str) -> str:
    """Return what is below the heading of `version`; empty where there is none."""
    found = re.search(rf"(?ms)^## {re.escape(version)}(?=\s)[^\n]*\n(.*?)(?=^## |\Z)", text)
    return found[1].strip() if found else ""


def absolute(text: str, repository: str, version: str) -> str:
    """Return `text` with links into the repository at the tag of `version`: on the page of a release, relative ones lead nowhere."""
    return (
        re.sub(r"\]\((?![a-z]+:|#)", f"]({repository}/blob/v{version}/", text)
        if repository
        else text
    )


def main(args: list, repository: str = "") -> int:
    ours = re.search(
        r'(?m)^__version__ = "(.+)"$',
        (ROOT / "gguf_spec" / "__init__.py").read_text(encoding="utf-8"),
    )[1]
    version = args[0].removeprefix("v") if args else ours
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    if version != ours or not notes:
        why = (
            f"the package is version {ours}"
            if version != ours
            else "CHANGELOG.md has no section about it"
        )
        print(f"Error: no notes for version {version}: {why}.", file=sys.stderr)
        return 1
    print(absolute(notes, repository, version))
    return 0


if __name__ == "__main__":
    import os

    where = [
        os.environ.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
    ]  # set where the workflow runs
    sys.exit(main(sys.argv[1:], "/".join(where) if all(where) else ""))
