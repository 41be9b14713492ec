"""`gguf-spec completion`, in the shells themselves."""

import os
import shutil
import sys

import pytest

from tests.support import children
from tests.support.programs import shell_program

SHELLS = {
    # what is typed, and Tab behind it, as each shell hands it to the script
    "bash": """
        eval "$(gguf-spec completion bash)"
        compopt() {{ :; }}  # bash has it only while somebody presses Tab
        COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _gguf_spec_completion gguf-spec
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    "zsh": """
        autoload -U compinit; compinit -u -d "$HOME/dump"
        eval "$(gguf-spec completion zsh)"
        compadd() {{ while [ "$1" != -a ] && [ $# -gt 0 ]; do shift; done; for name in "${{(P)2[@]}}"; do printf '%s\\n' "$name"; done }}
        _describe() {{ for name in "${{(P)3[@]}}"; do printf '%s\\n' "${{name%%:*}}"; done }}
        words=({words}); CURRENT=${{#words}}
        _gguf_spec_completion
    """,
    "fish": """
        gguf-spec completion fish | source
        complete -C '{line}' | string replace -r '\\t.*' ''
    """,
}


@pytest.fixture
def complete(tmp_path):
    """Return what a shell offers for a line whose last word is not finished."""
    shell_program(tmp_path / "gguf-spec", f'exec "{sys.executable}" -m gguf_spec "$@"\n')

    def offered(shell, *words):
        if not shutil.which(shell):
            pytest.skip(f"needs {shell}")
        line = " ".join(words)
        script = SHELLS[shell].format(words=" ".join(f"'{word}'" for word in words), line=line)
        env = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        arguments = ["-f"] if shell == "zsh" else []
        done = children.run(
            [shell, *arguments, "-c", script],
            capture_output=True,
            text=True,
            env=env,
            check=False,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        return set(filter(None, done.stdout.split("\n")))

    return offered


@pytest.mark.full
@pytest.mark.parametrize("shell", SHELLS)
def test_commands_options_and_models(complete, shell):
    assert {"chat", "completion"} <= complete(shell, "gguf-spec", "c")
    assert complete(shell, "gguf-spec", "models", "pu") == {"pull"}
    assert complete(shell, "gguf-spec", "generate", "--show-d") == {"--show-draft"}
    assert {"smollm2", "smollm2-135m"} <= complete(shell, "gguf-spec", "generate", "-m", "smol")
    assert {"none", "ngram", "auto", "tales-draft"} <= complete(
        shell, "gguf-spec", "chat", "-d", ""
    )
    assert complete(shell, "gguf-spec", "models", "show", "smollm2-1") == {
        "smollm2-1.7b",
        "smollm2-135m",
        "smollm2-135m-instruct",
    }


@pytest.mark.parametrize(("shell", "offered"), [("bash", set()), ("fish", {"zzz.gguf"})])
def test_files_are_completed_where_no_name_matches(complete, shell, offered, tmp_path):
    """Bash looks for files itself where the script offers nothing."""
    (tmp_path / "zzz.gguf").touch()
    assert complete(shell, "gguf-spec", "generate", "-m", "zz") == offered


def test_a_broken_models_file_breaks_no_completion(complete, tmp_path, monkeypatch):
    (tmp_path / "config" / "gguf-spec").mkdir(parents=True)
    (tmp_path / "config" / "gguf-spec" / "models.yaml").write_text("models: [", encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert complete("bash", "gguf-spec", "chat", "-d", "n") == {"ngram", "none"}


@pytest.mark.parametrize("words", [[], ["tcsh"]])
def test_the_shell_must_be_named(here, words):
    done = here("completion", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Hint: " in done.stderr
