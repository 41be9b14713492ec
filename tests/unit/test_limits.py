"""Limits of control groups and rlimits: which one counts, in each form that systems have."""

import math
import sys

import pytest

from gguf_spec.llama import options
from gguf_spec.llama.memory import MemoryEstimate
from gguf_spec.system import limits, machine
from gguf_spec.system.limits import Places, memory_limits, processor_limit
from tests.support import children

GIB = 1 << 30
NONE_V1 = "9223372036854771712"


class Tree:
    """Stands for `/proc/self` and `/sys/fs/cgroup`."""

    def __init__(self, folder):
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.proc.mkdir()
        self.groups.mkdir()
        self.mounts, self.places = [], Places(self.proc, self.groups)

    def write(self, path, **files):
        folder = self.groups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".", 1)).write_text(f"{text}\n")

    def mount(self, at, options, root="/"):
        kind = "cgroup" if options else "cgroup2"
        where = str(self.groups / at).replace(" ", "\\040")
        self.mounts.append(
            f"31 23 0:28 {root} {where} rw,nosuid shared:9 - {kind} cgroup rw,{options}"
        )

    def own(self, *lines):
        (self.proc / "cgroup").write_text("\n".join(lines) + "\n")
        (self.proc / "mountinfo").write_text("\n".join(self.mounts) + "\n")


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def unit(tree):
    """A unit with MemoryMax= and CPUQuota= of systemd."""
    tree.mount("", "")
    tree.write("system.slice/app.service", memory_max=600 << 20, cpu_max="50000 100000")
    tree.own("0::/system.slice/app.service")


def slice_above(tree):
    unit(tree)
    tree.write("system.slice", memory_max=500 << 20, cpu_max="25000 100000")


def high(tree):
    tree.mount("", "")
    tree.write("a", memory_max="max", memory_high=300 << 20, cpu_max="max 100000")
    tree.own("0::/a")


def container(tree):
    """With a namespace of its own: the mount is the group."""
    tree.mount("", "")
    tree.write("", memory_max=GIB, cpu_max="200000 100000")
    tree.own("0::/")


def container_of_another_namespace(tree):
    container(tree)
    tree.own("0::/../../other")


def container_of_version_1(tree):
    """Without a namespace: the part of the hierarchy that is mounted is the group."""
    for name in ("memory", "cpu,cpuacct"):
        tree.mount(name, name, root="/docker/0123")
    tree.write("memory", memory_limit_in_bytes=2 * GIB)
    tree.write("cpu,cpuacct", cpu_cfs_quota_us=150000, cpu_cfs_period_us=100000)
    tree.own("4:memory:/docker/0123", "3:cpu,cpuacct:/docker/0123", "0::/docker/0123")


def version_1(tree):
    tree.mount("memory", "memory")
    tree.mount("cpu", "cpu")
    tree.write("memory", memory_limit_in_bytes=NONE_V1)
    tree.write("memory/a", memory_limit_in_bytes=3 * GIB)
    tree.write("memory/a/b", memory_limit_in_bytes=NONE_V1)
    tree.write("cpu/x", cpu_cfs_quota_us=-1, cpu_cfs_period_us=100000)
    tree.own("2:memory:/a/b", "1:cpu:/x")


def hybrid(tree):
    """Controllers of version 1, beside a hierarchy of version 2 for systemd alone."""
    version_1(tree)
    tree.mount("unified", "")
    tree.write("unified/a", memory_max=GIB)
    tree.own("2:memory:/a/b", "1:cpu:/x", "0::/a")


def removed(tree):
    """The group of the process is gone or hidden; those above it count."""
    tree.mount("", "")
    tree.write("user.slice", memory_max=GIB)
    tree.own("0::/user.slice/gone")


def odd_names(tree):
    tree.mount("with space", "")
    tree.write("with space/a:b.scope", memory_max=GIB, cpu_max="100000 100000")
    tree.own("0::/a:b.scope")


def without_proc(tree):
    tree.write("", memory_max=GIB)


def without_proc_of_version_1(tree):
    tree.write("memory", memory_limit_in_bytes=2 * GIB)
    tree.write("cpu", cpu_cfs_quota_us=300000, cpu_cfs_period_us=100000)


def without_limits(tree):
    tree.mount("", "")
    tree.write("a", memory_max="max", memory_high="max", cpu_max="max 100000")
    tree.own("0::/a")


def damaged(tree):
    tree.mount("", "")
    tree.write("a", memory_max="many", cpu_max="0 0")
    tree.mounts += ["short", " - ", "1 2 3 - cgroup2"]
    tree.own("0", "nonsense", "0::/a", "")


FORMS = [
    (unit, 600 << 20, 0.5), (slice_above, 500 << 20, 0.25), (high, 300 << 20, None), (container, GIB, 2.0),
    (container_of_another_namespace, GIB, 2.0), (container_of_version_1, 2 * GIB, 1.5), (version_1, 3 * GIB, None), (hybrid, GIB, None),
    (removed, GIB, None), (odd_names, GIB, 1.0), (without_proc, GIB, None), (without_proc_of_version_1, 2 * GIB, 3.0),
    (without_limits, None, None), (damaged, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("form", "memory", "processors"), FORMS)
def test_each_form_of_groups(tree, form, memory, processors):
    form(tree)
    all_ = memory_limits(tree.places)
    found = min(all_, default=None)
    assert (found and found.n_bytes) == memory
    assert machine.total_bytes(all_) == min(memory or math.inf, machine.total_bytes([]))
    assert machine.available_bytes(all_) <= machine.total_bytes(all_)
    limit = processor_limit(tree.places)
    assert (limit and limit.processors) == processors
    assert options.cores_within(limit, 64) == max(1, math.floor(processors or 64))
    for one in filter(None, (found, limit)):
        assert one.source.startswith(str(tree.groups))


def test_what_is_used_is_that_of_each_group_without_file_pages(tree):
    """A neighbour in the slice uses most of it, and a model that was read before is no use."""
    unit(tree)
    tree.write("system.slice/app.service", memory_current=400 << 20)
    stat = f"anon 5\ninactive_file {100 << 20}\nactive_file {200 << 20}\n"
    (tree.groups / "system.slice/app.service/memory.stat").write_text(stat)
    assert [one.left for one in memory_limits(tree.places)] == [500 << 20]
    tree.write("system.slice", memory_max=700 << 20, memory_current=690 << 20)
    assert [one.left for one in memory_limits(tree.places)] == [500 << 20, 10 << 20]


def test_file_pages_of_version_1_are_those_of_all_groups_below(tree):
    version_1(tree)
    tree.write("memory/a", memory_usage_in_bytes=GIB)
    stat = f"inactive_file 0\nactive_file 0\ntotal_inactive_file {GIB // 2}\n"
    (tree.groups / "memory/a/memory.stat").write_text(stat)
    assert [one.left for one in memory_limits(tree.places)] == [3 * GIB - GIB // 2]


def test_a_model_that_is_refused_names_the_limit(tree, monkeypatch):
    unit(tree)
    monkeypatch.setattr(machine, "memory_limits", lambda: memory_limits(tree.places))
    tree.write("system.slice/app.service", memory_current=500 << 20)
    free, total = machine.available_bytes(), machine.total_bytes()
    sizes = dict.fromkeys(("weights", "caches", "compute", "base", "copies", "idle", "n_ctx"), 0)
    limit = f"(the limit is 600 MiB: {tree.groups}/system.slice/app.service/memory.max)"
    little = MemoryEstimate(**sizes | {"caches": GIB}, free=free, machine=total)
    assert little.room == f"100 MiB are free {limit}"
    small = MemoryEstimate(**sizes | {"weights": GIB}, free=free, machine=total)
    assert small.room == f"this machine has 600 MiB {limit}"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce it")
def test_the_address_space_is_a_limit():
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from gguf_spec.system.machine import available_bytes, total_bytes\n"
        "assert total_bytes() <= 4 << 30\nassert available_bytes() < 4 << 30\n"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_no_rlimits_on_windows(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    assert [*limits.address_space()] == []
