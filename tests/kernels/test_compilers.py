"""The kernels have the same bits from each compiler that is found: GCC, clang, and zig (`pip install ziglang`, or in the PATH)."""

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import pytest

from gguf_spec.llama import own_kernels
from tests.support import children

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "build"))
import _llama_wheel
import build_kernels

# Prints the bits of all operations of the self-test, with an instruction set.
BITS = """
import hashlib, json, sys
from gguf_spec.llama import own_kernels, selftest
assert own_kernels.enter(sys.argv[1]).name == sys.argv[1]
bits = {}
for i, one in enumerate(selftest.operations()):
    rows = b"".join(one.rows(0, n, 1).tobytes() for n in (1, 3, 17))
    bits[f"{i} {one.name}"] = hashlib.sha256(rows).hexdigest()
    assert own_kernels.n_computed(one.is_attention)
print(json.dumps(bits))
"""


# Compilers for other processors and systems, how their libraries begin, and what these export; zig's by their targets.
OTHERS = {
    "aarch64-linux-gnu-g++": (b"\x7fELF" + bytes([2, 1, 1, *[0] * 9, 3, 0, 183]), "so"),
    "x86_64-w64-mingw32-g++-posix": (b"MZ", "dll"),
    "aarch64-linux-gnu.2.28": (b"\x7fELF" + bytes([2, 1, 1, *[0] * 9, 3, 0, 183]), "so"),
    "x86_64-windows-gnu": (b"MZ", "dll"),
    "aarch64-macos": (bytes([0xCF, 0xFA, 0xED, 0xFE, 12, 0, 0, 1]), "dylib"),
    "x86_64-macos": (bytes([0xCF, 0xFA, 0xED, 0xFE, 7, 0, 0, 1]), "dylib"),
}


def zigs(target):
    """Return the commands of zig, as a program and as a module, for a processor and a system."""
    target = ["c++", "-target", target]
    found = [["zig", *target]] if shutil.which("zig") else []
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", *target])
    return found


def compilers():
    """Return commands of different compilers, by what `--version` says."""
    names = [["g++"], ["clang++"]]
    for folder in os.get_exec_path():
        found = [one.name for one in Path(folder).glob("*++-*")]
        names += [[name] for name in sorted(found) if re.fullmatch(r"(g|clang)\+\+-\d+", name)]
    names += zigs(_llama_wheel.ZIG_TARGET.format(platform.machine()))
    found = {}
    for command in names:
        if shutil.which(command[0]):
            version = children.run(
                [*command, "--version"], capture_output=True, text=True, check=False
            ).stdout.partition("\n")[0]
            found.setdefault(version, command)
    return found


def bits_of(library, name):
    """Return the bits of all operations of a library, with an instruction set."""
    env = os.environ | {"GGUF_SPEC_KERNELS_LIBRARY": str(library), "GGUF_SPEC_KERNELS": "auto"}
    command = [sys.executable, "-c", BITS, name]
    done = children.run(command, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_each_compiler_makes_the_same_bits(tmp_path):
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    found = compilers()
    if len(found) < 2:
        pytest.skip(f"only one compiler: {', '.join(found)}")
    libraries = {}
    for i, (version, command) in enumerate(found.items()):
        (tmp_path / str(i)).mkdir()
        libraries[version] = build_kernels.build(tmp_path / str(i), "here", compiler=command)
    for name in build_kernels.sets("here"):
        first, *others = [(version, bits_of(path, name)) for version, path in libraries.items()]
        assert len(first[1]) > 100
        for version, bits in others:
            different = [one for one in bits if bits[one] != first[1][one]]
            assert not different, f"{name}: {version} and {first[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", OTHERS)
def test_the_kernels_for_other_machines_compile(tmp_path, compiler, capfd):
    """GCC's generic processor lacks what its header of ARM asks for; zig does not know the name of the architecture. No compiler warns."""
    found = [[compiler]] if "g++" in compiler else zigs(compiler)
    found = [one for one in found if shutil.which(one[0])]
    if not found:
        pytest.skip("the compiler is not installed")
    library = build_kernels.build(tmp_path, "all", compiler=found[0])
    begin, ending = OTHERS[compiler]
    assert library.read_bytes().startswith(begin)
    assert library.name == f"libgguf_spec_kernels.{ending}"
    assert all(name.encode() in library.read_bytes() for name in EXPORTED)
    assert "warning" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("told", "target"),
    [
        ("x86_64-linux-gnu", ("x86_64", "linux")),
        ("aarch64-linux-gnu", ("aarch64", "linux")),
        ("x86_64-w64-mingw32", ("x86_64", "win32")),
        ("x86_64-w64-windows-gnu", ("x86_64", "win32")),
        ("arm64-apple-darwin24.1.0", ("arm64", "darwin")),
        ("x86_64-pc-windows-msvc", ("x86_64", "pc-windows-msvc")),
        ("a compiler - 1.0-2", (platform.machine(), sys.platform)),
    ],
)
def test_a_compiler_says_what_it_is_for(tmp_path, told, target):
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\necho '{told}'\n")
    compiler.chmod(0o755)
    assert build_kernels.target_of([str(compiler)]) == target
    assert build_kernels.target_of([str(tmp_path / "none")]) == (platform.machine(), sys.platform)
    if "msvc" in told:
        with pytest.raises(OSError, match="there are none for x86_64 on pc-windows-msvc"):
            build_kernels.build(tmp_path, compiler=[str(compiler)])


def test_zig_is_for_what_it_is_told():
    targets = {"aarch64-macos": ("aarch64", "darwin"), "x86_64-windows-gnu": ("x86_64", "win32")}
    targets["aarch64-linux-gnu.2.28"] = ("aarch64", "linux")
    for name, target in targets.items():
        assert build_kernels.target_of(["/x/zig", "c++", "-target", name]) == target


def test_tiles_are_asked_of_linux_alone():
    assert build_kernels.sets("all", "x86_64")[0] == "amx"
    for system in ("win32", "darwin"):
        others = build_kernels.sets("all", "x86_64", system)
        assert others == build_kernels.sets("all", "x86_64")[1:]
    assert not build_kernels.is_possible("aarch64", "win32")


def test_a_compiler_for_windows_moves_vectors_to_any_place(monkeypatch):
    """The stack is aligned to 16 bytes there, and GCC writes vectors of 32 and 64 bytes to it as if it were to 64."""
    told = {"gcc": ("", "GCC"), "clang": ("", "clang version 20"), "old": ("", "GCC")}
    monkeypatch.setattr(build_kernels, "first_line", lambda command: told[command[0]])
    monkeypatch.setattr(build_kernels, "knows", lambda command, *_: command[0] == "gcc")
    assert build_kernels.of_system(["gcc"], "win32")[0] == ["-Wa,-muse-unaligned-vector-move"]
    assert build_kernels.of_system(["clang"], "win32")[0] == []
    with pytest.raises(OSError, match=r"binutils 2\.38"):
        build_kernels.of_system(["old"], "win32")
    assert build_kernels.of_system(["old"], "linux")[0] == []


EXPORTED = ("gguf_spec_kernels_start", "gguf_spec_kernels_misfit", "gguf_spec_kernels_count", "gguf_spec_sample")  # fmt: skip
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",
    "-O1",
    "-w",
]  # vptr: a mirror of llama.cpp's class


@pytest.mark.slow
def test_the_sanitizers_find_nothing_in_the_self_test(tmp_path):
    """Nor at the end, where llama.cpp frees its list with our entry."""
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    asked = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    found = [children.run(one, capture_output=True, text=True).stdout.strip() for one in asked]
    if not all(map(os.path.isabs, found)):
        pytest.skip("g++ has no sanitizers here")
    library = build_kernels.build(tmp_path, "best", flags=SANITIZERS, compiler=["g++"])
    options = "detect_leaks=0:halt_on_error=1:log_path=" + str(tmp_path / "found")
    env = {"GGUF_SPEC_KERNELS_LIBRARY": str(library), "GGUF_SPEC_KERNELS": "auto"}
    env |= {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": options, "UBSAN_OPTIONS": options}
    name = build_kernels.sets("best")[0]
    command = [sys.executable, "-c", BITS, name]
    done = children.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
    faults = [path.read_text(errors="replace") for path in tmp_path.glob("found*")]
    assert not faults and done.returncode == 0, (faults, done.stderr)
