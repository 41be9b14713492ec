"""Modules and files of gguf-spec that PyInstaller does not find by itself."""

from importlib.util import find_spec
from pathlib import Path

from PyInstaller.utils.hooks import (
    collect_data_files,
    collect_dynamic_libs,
    copy_metadata,
    get_package_paths,
)

from gguf_spec.system.subprogram import PROGRAMS

_programs = [one for one in PROGRAMS if find_spec(one.partition(".")[0])]  # plugins may be missing
hiddenimports = [*_programs, "llama_cpp"]
binaries = collect_dynamic_libs("llama_cpp") + collect_dynamic_libs("gguf_spec")
datas = collect_data_files("gguf_spec", excludes=["kernels/*", "_pyinstaller/**"])
datas += copy_metadata("gguf-spec")
_package = Path(get_package_paths("gguf_spec")[1])
if not (_package / "models.yaml").exists():  # in a clone
    datas.append((str(_package.parent / "models.yaml"), "gguf_spec"))
