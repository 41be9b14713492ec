"""Images on the command line: --mmproj, --image, and /image in the chat."""

import json

import pytest

from tests.support import projector_file, tiny

needs_mtmd = pytest.mark.skipif(
    not projector_file.has_mtmd(), reason="this build of llama-cpp-python has no libmtmd"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    tiny.write(folder / "model.gguf", tiny.llama(n_layer=2))
    projector_file.write(folder / "mmproj.gguf")
    for i in (1, 2):
        (folder / f"{i}.png").write_bytes(projector_file.png(i))
    (folder / "text.png").write_text("no image")
    return folder


@pytest.fixture
def run(here, folder):
    """Run a command with the model; the result has texts."""

    def run(command, *words, stdin=""):
        model = ["-m", folder / "model.gguf", "-d", "none", "-t", "0", "-n", "12", "--threads", "1"]
        return here(command, *model, *words, stdin=stdin.encode())

    return run


@pytest.mark.full
@needs_mtmd
def test_generate(folder, run):
    mmproj = ("--mmproj", folder / "mmproj.gguf")
    texts = []
    for images in ((1,), (2,), (1, 2)):
        options = [word for i in images for word in ("--image", folder / f"{i}.png")]
        done = run("generate", "What?", "--json", *mmproj, *options)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        texts.append(answer["text"])
        assert answer["stats"]["n_prompt"] > len(images) * projector_file.N_TOKENS
    assert len({*texts}) == 3


def test_wrong_options(folder, run):
    done = run("generate", "What?", "--image", folder / "1.png")
    assert done.returncode == 2
    assert "--image needs --mmproj FILE" in done.stderr.decode()
    mmproj = ("--mmproj", folder / "mmproj.gguf")
    done = run("generate", "What?", *mmproj, "--image", folder / "text.png")
    assert done.returncode == 1
    assert "is not a PNG" in done.stderr.decode()
    done = run("generate", "What?", *mmproj, "--image", folder / "none.png")
    assert done.returncode == 1
    assert "cannot be read" in done.stderr.decode()


@needs_mtmd
def test_a_file_that_is_not_a_projector(folder, run):
    done = run("generate", "What?", "--mmproj", folder / "model.gguf")
    assert done.returncode == 1
    assert "is not a projector but a model (llama)" in done.stderr.decode()


@needs_mtmd
def test_chat(folder, run, tmp_path):
    mmproj = ("--mmproj", folder / "mmproj.gguf")
    lines = (
        f"/image {folder / '1.png'}\n/image\nWhat?\n/image\nAnd?\n/image {folder / 'text.png'}\n"
    )
    done = run("chat", "--json", "--save", tmp_path / "talk.session", *mmproj, stdin=lines)
    first, second, error = map(json.loads, done.stdout.splitlines())
    assert first["stats"]["n_prompt"] > projector_file.N_TOKENS
    assert second["stats"]["n_prompt"] > first["stats"]["n_prompt"]
    assert "is not a PNG" in error["error"]
    assert "With the next message: 1.png." in done.stderr.decode()
    assert "With the next message: no image." in done.stderr.decode()
    lines = f"/load {tmp_path / 'talk.session'}\n/undo\n/undo\n/image {folder / '2.png'}\nWhat?\n"
    done = run("chat", "--json", *mmproj, stdin=lines)
    assert "Removed: [image] What?" in done.stderr.decode()
    assert json.loads(done.stdout)["text"] != first["text"]
    done = run("chat", "--json", "--image", folder / "1.png", *mmproj, stdin="What?\n")
    assert json.loads(done.stdout)["text"] == first["text"]
    done = run("chat", "--json", stdin=f"/image {folder / '1.png'}\n")
    assert "without a projector" in json.loads(done.stdout)["error"]


@needs_mtmd
def test_doctor(folder):
    from gguf_spec.doctor.models import projector

    check = projector(folder / "mmproj.gguf", folder / "model.gguf", None, True)
    assert (check.status, check.name) == ("ok", "projector")
    assert "mlp, images of 56 pixels" in check.found
    check = projector(folder / "model.gguf", folder / "model.gguf", None, True)
    assert check.status == "fail"
    assert "not a projector" in check.found
