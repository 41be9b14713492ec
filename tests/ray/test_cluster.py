"""A cluster of two nodes on this machine, of which one is killed in the middle: nothing is lost, and all texts are those of one process."""

import concurrent.futures
import http.client
import json
import os
import socket
import threading
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: pip install . plugins/gguf-spec-ray")

from gguf_spec import Sampling  # noqa: E402
from gguf_spec import ray as gguf_spec_ray  # noqa: E402
from gguf_spec.errors import InvalidOptionError  # noqa: E402
from tests.server.conftest import until  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture
def cluster(monkeypatch):
    """A head and a second node, `cluster.other`."""
    from ray import serve
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        cluster.other = cluster.add_node(**NODE)
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def kill(cluster):
    """End a node with all its processes, without any notice."""
    cluster.remove_node(cluster.other, allow_graceful=False)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.fixture
def served(cluster):
    """Return the port and the handle of an application with a replica on each node."""
    from ray import serve

    port = free_port()
    serve.start(proxy_location="HeadOnly", http_options={"port": port})

    def run(**options):
        given = {"replicas": 2, "num_cpus": 0.8, "draft": "none", "drain": 2.0}
        app = gguf_spec_ray.application("tales", **(given | options))
        return port, serve.run(app, name="tales", route_prefix="/llm")

    return run


def stream(port, seed, begun=None):
    """Return the texts of a streamed answer by choice, and whether it came to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    fields = {
        "prompt": "The old king", "stream": True, "n": 6, "max_tokens": 300, "seed": seed, "ignore_eos": True,
    }  # fmt: skip
    connection.request("POST", "/llm/v1/completions", json.dumps(fields))
    response, texts, is_whole = connection.getresponse(), {}, False
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if begun and texts.get(1):
                begun()
        is_whole = is_whole or line.startswith(b"data: [DONE]")
    connection.close()
    return [texts[i] for i in sorted(texts)], is_whole


def test_streams_continue_when_a_node_is_killed(served, cluster, tales):
    port, handle = served()
    seeds = [10, 20, 30, 40]
    begun = {seed: threading.Event() for seed in seeds}
    with concurrent.futures.ThreadPoolExecutor(len(seeds)) as pool:
        running = [pool.submit(stream, port, seed, begun[seed].set) for seed in seeds]
        until(lambda: sum(one.is_set() for one in begun.values()) >= 2, 120)
        kill(cluster)
        answers = [one.result(timeout=300) for one in running]
    assert handle.n_repeated.remote().result() > 0
    for seed, (texts, is_whole) in zip(seeds, answers, strict=True):
        assert is_whole
        expected = [
            tales.generate("The old king", Sampling(seed=seed + i, max_tokens=300, ignore_eos=True))
            for i in range(6)
        ]
        assert texts == [one.text for one in expected]


def test_a_client_that_leaves_frees_the_replica(served):
    port, _ = served(replicas=1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    fields = {"prompt": "The old king", "stream": True, "n": 16, "max_tokens": 2000, "ignore_eos": True}  # fmt: skip
    connection.request("POST", "/llm/v1/completions", json.dumps(fields))
    response = connection.getresponse()
    response.readline()

    def is_busy():
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
        other.request("GET", "/llm/health")
        found = json.loads(other.getresponse().read())
        other.close()
        return found["busy"]

    assert is_busy()
    connection.sock.close()
    response.close()
    until(lambda: not is_busy(), 5)


def test_the_application_of_the_command_and_its_mistakes(served, cluster):
    from ray import serve

    with pytest.raises(InvalidOptionError, match="replicas is 0"):
        gguf_spec_ray.application("tales", replicas=0)
    with pytest.raises(InvalidOptionError, match="omitted if there is autoscaling"):
        gguf_spec_ray.application("tales", replicas=2, autoscaling={"max_replicas": 2})
    port = served()[0]
    args = {"model": "tales", "num_cpus": "0.5", "draft": "none", "max_tokens": "3"}
    autoscaling = {"min_replicas": 1, "max_replicas": 2}
    serve.run(
        gguf_spec_ray.build(args | {"autoscaling": autoscaling}), name="tales", route_prefix="/"
    )
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 4}))
    assert "is 4 but the limit of this server is 3" in connection.getresponse().read().decode()
    connection.request("GET", "/health", headers={"Host": "elsewhere.example"})
    assert connection.getresponse().status == 403
    connection.close()


def test_ray_takes_the_example():
    import yaml
    from ray.serve.schema import ServeDeploySchema

    file = Path(__file__).resolve().parents[2] / "scripts" / "examples" / "ray-serve.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    (one,) = ServeDeploySchema(**config).applications
    gguf_spec_ray.build(one.args)


def test_a_data_set_is_answered_when_a_node_is_killed(cluster, tales, tmp_path):
    rows = [{"id": i, "prompt": f"Once there were {i} foxes"} for i in range(60)]
    rows[3] |= {"prompt": ""}
    rows[4] |= {"seed": 7, "max_tokens": 5}
    rows[5] |= {"temperature": -3.0}
    marks = tmp_path / "marks"
    marks.mkdir()

    class Watched(gguf_spec_ray.Generate):
        """Leaves a file for each batch with the process that answered it."""

        def __call__(self, batch):
            found = super().__call__(batch)
            node = ray.get_runtime_context().get_node_id()
            (marks / f"{node}-{batch['id'][0]}-{os.getpid()}").touch()
            return found

    answered = ray.data.from_items(rows, override_num_blocks=20).map_batches(
        Watched,
        fn_constructor_kwargs={"model": "tales", "draft": "none", "sampling": {"max_tokens": 200}, "seed": 3},
        compute=ray.data.ActorPoolStrategy(size=2), num_cpus=0.8, batch_size=3,
    )  # fmt: skip

    def kill_it():
        until(lambda: any(f.name.startswith(cluster.other.node_id) for f in marks.iterdir()), 120)
        kill(cluster)

    killer = threading.Thread(target=kill_it)
    killer.start()
    found = {row["id"]: row for row in answered.take_all()}
    killer.join()
    assert len(list(marks.iterdir())) >= 20
    assert sorted(found) == list(range(60))
    alone = object.__new__(gguf_spec_ray.Generate)
    alone._llm, alone._seed = tales, 3
    alone._sampling = Sampling(max_tokens=200)
    for i, row in found.items():
        answer = alone({name: [value] for name, value in rows[i].items()})
        for name in ("text", "finish_reason", "error"):
            assert row[name] == answer[name][0], i
    assert (found[3]["error"], found[3]["finish_reason"]) == (
        "the prompt is empty. write a text to continue, such as 'Once upon a time'.",
        "error",
    )
    assert found[4]["completion_tokens"] == 5
    assert "temperature is -3.0" in found[5]["error"]
    assert not [row for row in found.values() if row["error"] and row["id"] not in (3, 5)]
