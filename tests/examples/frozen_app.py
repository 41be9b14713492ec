"""The main script of a frozen app: the Tk example as `drive_desktop_app` drives it, or with a file as argument, each child process.

The file gets what it saw, as JSON. Each start of this code adds a line to the file in the variable STARTS: a child that is the app again is
seen there.
"""

import json
import os
import sys
from pathlib import Path

import gguf_spec
from gguf_spec import Sampling


def refused(call, *arguments):
    try:
        return repr(call(*arguments))
    except gguf_spec.errors.GgufSpecError as error:
        return f"{type(error).__name__}: {error}"


def tried(out):
    from gguf_spec.llama import own_kernels
    from gguf_spec.quantize import quantize
    from gguf_spec.registry import package
    from gguf_spec.registry.models_file import BUNDLED
    from gguf_spec.text import jinja_sandbox
    from gguf_spec_workers.remote import Child

    seen = {"frozen": bool(getattr(sys, "frozen", False))}
    with gguf_spec.load("tales", n_ctx=256, threads=1) as llm:
        sampling = Sampling(max_tokens=20, temperature=0.0)
        seen["text"] = llm.generate("Once upon a time", sampling).text
    seen["kernels"] = own_kernels.in_use().name
    seen["no_kernels"] = own_kernels.in_use().reason
    seen["repacking"] = own_kernels.repacking_problem()
    template = "{% for i in range(3) %}{{ i }}{{ x }}{% endfor %}"  # `range` needs the child
    seen["template"] = jinja_sandbox.render(template, {"x": "-"})
    model = BUNDLED / "tales" / "tales-target-Q8_0.gguf"
    seen["quantized"] = quantize(model, out.with_suffix(".gguf"), "Q4_0", threads=1).type
    seen["workers"] = refused(Child, ["127.0.0.1:1"], False)
    seen["package"] = refused(
        package.command, "a-model", "a-package==1", out.parent, package.programs()
    )
    out.write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    with Path(os.environ["STARTS"]).open("a", encoding="utf-8") as starts:
        starts.write(f"{sys.argv[1:]}\n")
    if len(sys.argv) == 2:
        tried(Path(sys.argv[1]))
    else:
        import drive_desktop_app  # noqa: F401 -- it is a program
