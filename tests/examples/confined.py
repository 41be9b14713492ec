"""Apply settings of a unit to this process, as systemd does, and answer a request of a server in it.

Usage: confined.py SETTING..., in a mount namespace of its own (`unshare -m`), as root
"""

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

CAPBSET_DROP, NO_NEW_PRIVILEGES, MDWE = 24, 38, 65  # of prctl
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # of seccomp: EPERM
ANSWER = """
import json, urllib.request
import gguf_spec
from gguf_spec.llama import own_kernels
from gguf_spec.server import serve_in_thread
from gguf_spec.text import jinja_sandbox

body = json.dumps({"prompt": "Once", "max_tokens": 12, "seed": 1}).encode()
with gguf_spec.load("tales", parallel=2) as llm, serve_in_thread(llm) as server:
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
    print(json.loads(urllib.request.urlopen(request).read())["choices"][0]["text"])
    print(own_kernels.in_use(), own_kernels.repacking_problem())
    print(jinja_sandbox.render("{% for i in range(3) %}{{ i }}{% endfor %}", {}))
"""


def prctl(*numbers):
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(*numbers, *[0] * (5 - len(numbers))):
        raise OSError(ctypes.get_errno(), f"prctl {numbers}")


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def calls_of(group):
    """Return the system calls of a group of systemd."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    found = set()
    for line in told.stdout.splitlines()[1:]:
        word = line.strip()
        if word and not word.startswith("#"):
            found |= calls_of(word) if word.startswith("@") else {word}
    return found


def call_filter():
    """SystemCallFilter=@system-service and ~@privileged; returns what switches it on."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    made = ctypes.c_void_p(library.seccomp_init(REFUSE))
    for name in calls_of("@system-service") - calls_of("@privileged"):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            library.seccomp_rule_add(made, ALLOW, number, 0)

    def start():
        assert library.seccomp_load(made) == 0

    return start


def main(settings):
    cache = os.environ["XDG_CACHE_HOME"]
    start_filter = call_filter() if "SystemCallFilter" in settings else lambda: None
    if {"NoExecPaths", "ProtectSystem"} & {*settings}:
        mount("-t", "tmpfs", "-o", "noexec", "tmpfs", cache)
    if "PrivateTmp" in settings:
        mount("-t", "tmpfs", "tmpfs", "/var/tmp")
        os.environ["TMPDIR"] = "/var/tmp"
    if "PrivateDevices" in settings:
        names = ("null", "zero", "full", "random", "urandom")
        mount("-t", "tmpfs", "tmpfs", "/mnt")
        for name in names:
            Path("/mnt", name).touch()
            mount("--bind", f"/dev/{name}", f"/mnt/{name}")
        mount("--rbind", "/mnt", "/dev")
    if "ProtectProc" in settings:
        mount("-t", "proc", "-o", "hidepid=2,subset=pid", "proc", "/proc")
    if "ProtectSystem" in settings:
        mount("-o", "remount,bind,ro", "/")
    if "TasksMax" in settings:
        resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
    if "CapabilityBoundingSet" in settings:
        for number in range(41):
            prctl(CAPBSET_DROP, number)
    if {"NoNewPrivileges", "SystemCallFilter"} & {*settings}:
        prctl(NO_NEW_PRIVILEGES, 1)
    if "MemoryDenyWriteExecute" in settings:
        prctl(MDWE, 1)
    start_filter()
    os.umask(0o077)
    os.execv(sys.executable, [sys.executable, "-B", "-c", ANSWER])


if __name__ == "__main__":
    main(sys.argv[1:])
