"""Which GPU this machine has, and which build of llama.cpp is for it: `scripts/run --gpu`.

The drivers are asked in another process, as one may end it. Only the standard library; must be importable on Python 3.8.
"""

import json
import subprocess
import sys
from pathlib import Path

from ready_made import CUDA, CUDA_12, VULKAN, Unavailable

# compute capabilities that CUDA's build has code for; that for CUDA 12 has some for the others from 5.0 on
NEW_CAPABILITIES = ((8, 6), (8, 9), (12, 0), (12, 1))
OLDEST_CAPABILITY, OLDEST_CUDA = (5, 0), 12
PATIENCE_S = 60
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/kfd", "/dev/dxg")

# Programs that print what a driver tells, as JSON.
ASK_CUDA = """
import ctypes, json
cuda, number = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
def ask(name, *args):
    code = cuda[name](*args)
    if code:
        raise SystemExit(f"{name} gives error {code}")
def get(name, *args):
    ask(name, ctypes.byref(number), *args)
    return number.value
ask("cuInit", 0)
version, found = get("cuDriverGetVersion"), []
for i in range(get("cuDeviceGetCount")):
    name = ctypes.create_string_buffer(99)
    ask("cuDeviceGetName", name, 99, i)
    found.append([name.value.decode(errors="replace"), *(get("cuDeviceGetAttribute", one, i) for one in (75, 76))])
print(json.dumps([version // 1000, found]))
"""
ASK_VULKAN = """
import ctypes, json
vulkan, instance, n = ctypes.CDLL("libvulkan.so.1"), ctypes.c_void_p(), ctypes.c_uint32()
def ask(name, *args):
    code = vulkan[name](*args)
    if code:
        raise SystemExit(f"{name} gives error {code}")
ask("vkCreateInstance", (ctypes.c_uint64 * 8)(1), None, ctypes.byref(instance))
ask("vkEnumeratePhysicalDevices", instance, ctypes.byref(n), None)
devices, found = (ctypes.c_void_p * n.value)(), []
ask("vkEnumeratePhysicalDevices", instance, ctypes.byref(n), devices)
for one in devices:
    about = ctypes.create_string_buffer(4096)
    vulkan.vkGetPhysicalDeviceProperties(ctypes.c_void_p(one), about)
    kind = ctypes.c_uint32.from_buffer(about, 16).value
    found.append([about[20:276].split(b"\\0")[0].decode(errors="replace"), kind])
print(json.dumps(found))
"""
# a kind of device in Vulkan: no GPU, but a program
SOFTWARE = 4


def ask(program: str):
    """Return what a program prints, as JSON, or else why it does not: a text."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the driver does not answer: {error}"
    if done.returncode < 0:
        return f"the driver crashes: signal {-done.returncode}"
    try:
        return json.loads(done.stdout.decode().splitlines()[-1])
    except (ValueError, IndexError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return said[-1].partition("OSError: ")[2] or said[-1] if said else "no answer"


def choose() -> tuple:
    """Return the build for the GPU of this machine (one of `ready_made.GPUS`), and what was found: a text.

    Raises:
        Unavailable: There is no GPU that a build is for. The message says what was found in its place.
    """
    cuda = ask(ASK_CUDA)
    if not isinstance(cuda, str):
        version, devices = cuda
        for name, *numbers in devices:
            found = "{} (compute capability {}.{}), driver for CUDA {}".format(name, *numbers, version)  # fmt: skip
            if tuple(numbers) in NEW_CAPABILITIES and version >= 13:
                return CUDA, found
            if tuple(numbers) >= OLDEST_CAPABILITY and version >= OLDEST_CUDA:
                return CUDA_12, found
        cuda = "; ".join(f"{one[0]} is too old" for one in devices) or "no GPU"
        cuda += f", driver for CUDA {version}"
    vulkan = ask(ASK_VULKAN)
    if not isinstance(vulkan, str):
        for name, kind in vulkan:
            if kind != SOFTWARE:
                return VULKAN, f"{name} (Vulkan)"
        vulkan = ", ".join(f"{one[0]} computes on the processor" for one in vulkan) or "no GPU"
    files = sorted(str(one) for given in DEVICE_FILES for one in Path("/").glob(given[1:]))
    devices = f"the device files are {', '.join(files)}" if files else "there are no device files"
    raise Unavailable(f"CUDA: {cuda}; Vulkan: {vulkan}; {devices}")
