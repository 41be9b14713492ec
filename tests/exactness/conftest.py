from tests.gguf.conftest import animals  # noqa: F401 -- a fixture
