"""The package in a zip archive, as zipapp makes them: refused with the reason."""

import os
import sys
import zipfile
from pathlib import Path

import gguf_spec
from tests.support import children


def test_a_zip_archive_is_refused_with_the_reason(tmp_path):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.write(gguf_spec.__file__, "gguf_spec/__init__.py")
        archive.writestr("__main__.py", "import gguf_spec\n")
    command = [sys.executable, Path(tmp_path, "app.pyz")]
    done = children.run(command, capture_output=True, text=True, env=os.environ, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: gguf-spec does not run from a zip archive"
    )
