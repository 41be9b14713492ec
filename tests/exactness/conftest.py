from tests.gguf.conftest import gguf_dir  # noqa: F401 -- a fixture
