"""Try the product on the processor that it runs on, with the bundled models; `arm.py --whole` runs it in emulation.

    python arm_product.py SET                   # SET: the own kernels that are to be in use; "" for llama.cpp's
    python arm_product.py SET --planted TYPE    # a mistake is planted in them: the self-test and `verify` must find it

The exit status tells whether all is right.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen

PROMPT, OTHER = "Once upon a time", "The wolf said to the"
# Runs the self-tests and keeps their results: an emulator needs more than their usual time.
SELF_TEST = """
import time
from gguf_spec.llama import own_kernels
own_kernels._PATIENCE_S = 7200
start = time.monotonic()
print(own_kernels.library_problem("auto"))
print(own_kernels.extra_bufts_work(), f"{time.monotonic() - start:.0f} s")
"""
# Prints what the self-test finds in the products with a type.
PROBLEMS = """
import json, sys
from gguf_spec.llama import own_kernels, selftest
assert own_kernels.enter("auto").name
tested = (one for one in selftest.operations() if one.name == f"a product with {sys.argv[1]}")
print(json.dumps([selftest.problem_of(one) for one in tested]))
"""
# Saves a session, or goes on with it; without one it reads all again.
SESSION = """
import sys
from gguf_spec import Sampling, load
what, path = sys.argv[1:]
greedy = Sampling(temperature=0, max_tokens=24)
with load("tales") as llm:
    tokens = llm.tokenize("Once upon a time there was a wolf who")
    if what == "save":
        tokens += llm.generate_tokens(tokens, greedy).tokens
        llm.save_session(path, {"tokens": tokens})
    else:
        data, why = llm.restore_session(path)
        assert not why, why
        if what == "again":
            llm.forget()
        print(llm.generate_tokens(data["tokens"], greedy).tokens)
"""
VERIFY = ("verify", "--count", "1", "--max-tokens", "12", "--draws", "20", "--minutes", "0.1")
VERIFY += ("--json",)
failed: list[str] = []


def python(*words: str, fails: bool = False) -> str:
    """Return what a program of this Python prints; it ends with 0, or with 1 if it `fails`."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode != int(fails):
        raise SystemExit(f"{' '.join(words)[:200]}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(what: str, is_right: bool, about: object = "") -> None:
    if not is_right:
        failed.append(what)
    print(f"{'right' if is_right else 'WRONG'}: {what} {about}".rstrip(), flush=True)


def generate(*words: str) -> str:
    common = ("-m", "tales", "--seed", "1", "-n", "32")
    return python("-m", "gguf_spec", "generate", PROMPT, *common, *words)


def check_texts() -> None:
    for temperature in ("0", "0.8"):
        texts = [generate("-t", temperature, *draft) for draft in ((), ("-d", "none"))]
        check(f"text at {temperature}", len(texts[0]) > 60 and len({*texts}) == 1, repr(texts[0]))


def ask(address: str, prompt: str) -> str:
    body = {"model": "tales", "prompt": prompt, "max_tokens": 32, "temperature": 0}
    asked = Request(f"{address}/v1/completions", json.dumps(body).encode())
    asked.add_header("Content-Type", "application/json")
    with urlopen(asked, timeout=1200) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def check_server() -> None:
    command = [sys.executable, "-m", "gguf_spec", "serve", "-m", "tales", "-q", "--port", "0"]
    server = subprocess.Popen([*command, "--parallel", "2"], stdout=subprocess.PIPE, text=True)
    try:
        address = (server.stdout.readline().split() or [""])[-1] if server.stdout else ""
        alone = [ask(address, one) for one in (PROMPT, OTHER)]
        check("a request to the server", all(len(one) > 60 for one in alone), repr(alone))
        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(lambda one: ask(address, one), (PROMPT, OTHER)))
        check("two requests at once have the texts of each alone", together == alone)
    finally:
        server.terminate()
        server.wait()


def check_session() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/session"
        python("-c", SESSION, "save", path)
        restored, again = (python("-c", SESSION, what, path) for what in ("go on", "again"))
    check("a restored session goes on as one that is read again", restored == again, restored)


def verified(model: str = "tales", fails: bool = False) -> dict:
    words = ("-m", "gguf_spec", *VERIFY, "-m", model, "-d", "tales-draft")
    report: dict = json.loads(python(*words, fails=fails))
    return report


def check_verify() -> None:
    """Run `verify` with the bundled model as it is, and in Q4_K_M, whose types are those of most models."""
    print(json.dumps(verified()), flush=True)
    check("verify", True)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/tales-Q4_K_M.gguf"
        words = ("models", "quantize", "tales", path, "--type", "Q4_K_M", "--quiet")
        python("-m", "gguf_spec", *words)
        print(json.dumps(verified(path)), flush=True)
    check("verify of a Q4_K_M", True)


def check_product(kernels: str) -> None:
    problem, repacking = python("-c", SELF_TEST).splitlines()[-2:]
    is_right = not problem if kernels else problem.startswith("this processor lacks")
    check("the self-test", is_right, problem)
    check("the self-test of repacking", repacking.startswith("True"), repacking)
    report = python("-m", "gguf_spec", "doctor", "-m", "tales")
    print(report, flush=True)
    (line,) = (one for one in report.splitlines() if one.split()[1:2] == ["kernels"])
    wanted = f"those of gguf-spec, for {kernels}" if kernels else "lacks instructions for dot"
    check("kernels in use", wanted in line, line)
    check_texts()
    check_server()
    check_session()
    check_verify()


def check_planted(kind: str) -> None:
    """Check that the self-test finds the mistake, and `verify` where the bundled models have the type."""
    found = [*filter(None, json.loads(python("-c", PROBLEMS, kind).splitlines()[-1]))]
    check(f"the self-test finds the mistake in {kind}", bool(found), found)
    if kind not in ("repacked q4_0", "repacked q8_0"):
        return
    from gguf_spec.llama import own_kernels
    from gguf_spec.system.files import write_json

    # it passed once: so `verify` uses them
    write_json(own_kernels.library_result("auto"), {"ok": True, "problem": ""})
    faulty = {one["name"] for one in verified(fails=True)["checks"] if one["faults"]}
    check("verify finds it", bool(faulty & {"rows", "kernels"}), faulty)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels")
    parser.add_argument("--planted", help="such as `repacked q4_0`")
    args = parser.parse_args()
    start = time.monotonic()
    check_planted(args.planted) if args.planted else check_product(args.kernels)
    print(f"{len(failed)} checks failed, {time.monotonic() - start:.0f} s.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
