import configparser
import re
import shlex
import shutil
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
