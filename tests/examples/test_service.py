import configparser
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import children

UNIT = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "gguf-spec.service"


def test_it_calls_what_there_is():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    program, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("gguf-spec", "serve")
    from gguf_spec.cli.serve import serve

    options = {name for option in serve.params for name in option.opts}
    assert [one for one in arguments if one.startswith("--") and one not in options] == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_takes_it(tmp_path):
    copy = tmp_path / UNIT.name
    copy.write_text(
        re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text(encoding="utf-8")),
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
