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


EM_AARCH64 = 183  # in the header of an ELF file


def zigs(machine):
    """Return the commands of zig, as a program and as a module, for a kind of processor."""
    target = ["c++", "-target", _llama_wheel.ZIG_TARGET.format(machine)]
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
    names += zigs(platform.machine())
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
@pytest.mark.parametrize("compiler", ["g++", "zig"])
def test_the_kernels_for_arm_compile(tmp_path, compiler):
    """GCC's generic processor lacks what its header of ARM asks for; zig does not know the name of the architecture."""
    found = zigs("aarch64") if compiler == "zig" else [["aarch64-linux-gnu-g++"]]
    found = [one for one in found if shutil.which(one[0])]
    if not found:
        pytest.skip(f"no {compiler} for ARM")
    library = build_kernels.build(tmp_path, "all", compiler=found[0], machine="aarch64")
    assert library.read_bytes()[18] == EM_AARCH64


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
