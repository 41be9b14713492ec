"""Any content of a models file gives entries or one type of error."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.errors import InvalidModelsFileError
from gguf_spec.registry.models_file import read_models_file

GOOD = """\
models:
  mine:
    repo: someone/some-GGUF
    parts:
    - {file: f/a-00001-of-00002.gguf, size_bytes: 7, sha256: null}
    - {file: f/a-00002-of-00002.gguf}
    revision: 0123456789abcdef0123456789abcdef01234567
    context: 4_096
    draft: ngram
    prompt: chat
    note: "One: \\u00e9."
    aliases: [m, my]
    sampling: {temperature: 0.5, stop: [a], logit_bias: {7: -.inf}, json_schema: {type: [string]}}
  other:
    path: ~/x.gguf
    draft: mine
"""
PIECES = st.sampled_from([
    "&a ", "*a", "!!int ", "!!float ", "!!bool ", "!!null ", "!!binary ", "!!set ", "!!omap ", "!!timestamp ", "!!map ", "!!seq ", "!!str ", "!x ",
    "<<: ", "? ", "- ", ": ", "[", "]", "{", "}", "|\n", ">\n", "'", '"', "\\x", "\\U", "%YAML 1.1\n", "---\n", "...\n", "\t", "\n", "#", "0b", "0x",
    "1:2:3", "2020-99-99", ".nan", "=", "~", "none", "\0", "\x85", "\u2028", "\ud7ff", "9" * 5000, "models:", "..", "/",
])  # fmt: skip


@st.composite
def mutated(draw):
    text = GOOD
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 12))
        text = text[:at] + draw(PIECES | st.text(max_size=4)) + text[at + cut :]
    return text.encode("utf-8", "surrogatepass")


def read(folder, data):
    path = folder / "m.yaml"
    path.write_bytes(data)
    try:
        return read_models_file(path, {})
    except InvalidModelsFileError as error:
        assert error.hint and len(str(error)) < 1000 and str(error).isprintable()
        assert error.line is None or 1 <= error.line <= data.count(b"\n") + data.count(
            b"\r"
        ) + 2 + data.count(b"\xc2\x85") + data.count(b"\xe2\x80")
        return None


def test_the_source_of_the_mutations_is_valid(tmp_path):
    assert list(read(tmp_path, GOOD.encode())) == ["mine", "other"]


@pytest.mark.full
@settings(
    max_examples=500,
)
@given(mutated())
def test_mutated_files(tmp_path, data):
    read(tmp_path, data)


@pytest.mark.full
@settings(
    max_examples=200,
)
@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: f"models: {text}".encode("utf-8", "surrogatepass"))
)
def test_any_bytes(tmp_path, data):
    read(tmp_path, data)
