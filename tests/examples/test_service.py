import configparser
import ctypes.util
import os
import re
import shlex
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import children

EXAMPLES = Path(__file__).resolve().parents[2] / "scripts" / "examples"
UNITS = [EXAMPLES / "gguf-spec.service", EXAMPLES / "edge" / "gguf-spec-edge.service"]
each_unit = pytest.mark.parametrize("path", UNITS, ids=lambda one: one.stem)


@each_unit
def test_the_command_of_the_unit_exists(path):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(path)
    program, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("gguf-spec", "serve")
    from gguf_spec.cli.serve import serve

    options = {name for option in serve.params for name in option.opts}
    assert [one for one in arguments if one.startswith("--") and one not in options] == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
@each_unit
def test_systemd_accepts_the_unit(tmp_path, path):
    copy = tmp_path / path.name
    copy.write_text(
        re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    done = children.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    copy.write_text(copy.read_text(encoding="utf-8") + "NoSuchThing=1\n", encoding="utf-8")
    done = children.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    assert "NoSuchThing" in done.stderr


def test_the_edge_box_is_watched():
    """The unit expects what the server sends, and the settings name options that exist."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNITS[1])
    service = unit["Service"]
    assert (service["Type"], service["Restart"], service["MemorySwapMax"]) == (
        "notify",
        "always",
        "0",
    )
    assert int(service["WatchdogSec"]) > 0
    from gguf_spec.cli.serve import serve

    names = {f"GGUF_SPEC_{(option.name or '').upper()}" for option in serve.params}
    lines = (EXAMPLES / "edge" / "edge.env").read_text(encoding="utf-8").splitlines()
    settings = [line.partition("=")[0] for line in lines if line and not line.startswith("#")]
    assert settings
    assert set(settings) <= names
    assert "GGUF_SPEC_MODEL" in service["Environment"] or settings


# ---- the settings, applied by hand where systemd does not run


SETTINGS = [
    "SystemCallFilter", "NoExecPaths", "PrivateTmp", "PrivateDevices", "ProtectProc", "ProtectSystem", "TasksMax",
    "CapabilityBoundingSet", "NoNewPrivileges", "MemoryDenyWriteExecute",
]  # fmt: skip


def answered(folder, *settings, **options):
    """Return what a server says that has these settings."""
    cache = folder / "cache"
    cache.mkdir(exist_ok=True)
    return children.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-B", "-m", "tests.examples.confined", *settings],
        cwd=EXAMPLES.parents[1],
        env=os.environ | {"HOME": str(cache), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    if sys.platform != "linux" or os.geteuid() or not shutil.which("systemd-analyze"):
        pytest.skip("these settings are those of root on Linux with systemd")
    if not ctypes.util.find_library("seccomp"):
        pytest.skip("there is no libseccomp")
    done = answered(tmp_path_factory.mktemp("plain"))
    if "unshare" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param([SETTINGS[0]], marks=pytest.mark.full),
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in [*map(list, zip(SETTINGS[1:])), SETTINGS]
        ),
    ],
    ids="+".join,
)
def test_a_server_answers_with_each_setting(tmp_path, right, settings):
    """Also with the own kernels, whose self-test is a process, and templates, which need another one."""
    done = answered(tmp_path, *settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, right, "")


@contextmanager
def group(**limits):
    """Make control groups of version 1 with limits, and yield the function that a child calls to join them."""
    places = []
    try:
        for controller, files in limits.items():
            place = Path("/sys/fs/cgroup", controller, f"gguf-spec-{os.getpid()}")
            try:
                place.mkdir()
                places.append(place)
                for name, value in files.items():
                    (place / f"{controller}.{name}").write_text(f"{value}")
            except OSError as error:
                pytest.skip(f"no groups of version 1 can be made here: {error}")
        yield lambda: [(one / "cgroup.procs").write_text(f"{os.getpid()}") for one in places]
    finally:
        for place in reversed(places):
            place.rmdir()


def grouped(join, *words):
    return children.run(
        [sys.executable, "-m", "gguf_spec", *words],
        preexec_fn=join,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        limit_s=180,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no groups there")
def test_a_real_group_of_1_gib_and_half_a_processor():
    """What fits runs, and what does not is refused with the limit, not killed."""
    with group(memory={"limit_in_bytes": 1 << 30}, cpu={"cfs_quota_us": 50_000}) as join:
        told = grouped(join, "doctor")
        assert "threads      1 on 1 physical core (the limit is 0.5: " in told.stdout
        assert "of 1.0 GiB are free (the limit is 1.0 GiB: /sys/fs/cgroup/memory/" in told.stdout
        said = grouped(join, "generate", "-m", "tales", "-n", "8", "Once")
        assert (said.returncode, said.stderr) == (0, "")
    with group(memory={"limit_in_bytes": 60 << 20}) as join:
        said = grouped(join, "generate", "-m", "tales", "-n", "8", "Once")
        assert said.returncode == 1
        assert said.stderr.startswith("Error: ") and "55 MiB of memory" in said.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no groups there")
def test_a_real_cpuset():
    with group(cpuset={"cpus": 0, "mems": 0}) as join:
        told = grouped(join, "doctor")
        assert "threads      1 on 1 physical core" in told.stdout
