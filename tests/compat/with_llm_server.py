"""`llm` against a server, with the settings of docs/clients.md. Runs where llm is installed: see test_ecosystem.py."""

import os
import re
import sys
from pathlib import Path

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.support import children

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")


def test_the_settings_of_the_page_about_clients(tmp_path):
    (settings,) = re.findall(r"```yaml\n(- model_id: .*?)```", PAGE, re.DOTALL)
    with gguf_spec.load("tales", threads=1) as llm, serve_in_thread(llm) as server:
        settings = settings.replace("http://127.0.0.1:8080", server.url)
        (tmp_path / "extra-openai-models.yaml").write_text(settings, encoding="utf-8")
        line = [sys.executable, "-m", "llm", "-m", "local", "-o", "max_tokens", "30", "Tell me of a fox."]  # fmt: skip
        environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
        done = children.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 5
