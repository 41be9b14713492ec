"""Images in requests: the same text as in Python, and nothing that is fetched or too large."""

import base64

import openai
import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, ask_chat
from tests.support import projector_file, tiny

pytestmark = pytest.mark.skipif(
    not projector_file.has_mtmd(), reason="this build of llama-cpp-python has no libmtmd"
)
IMAGE = projector_file.png(1)
BASE64 = base64.b64encode(IMAGE).decode()
URL = f"data:image/png;base64,{BASE64}"
PARTS = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": URL}}]


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    tiny.write(folder / "model.gguf", tiny.llama(n_layer=2), metadata={"llama.context_length": 512})
    projector_file.write(folder / "mmproj.gguf")
    with gguf_spec.load(
        folder / "model.gguf", "ngram", mmproj=folder / "mmproj.gguf", threads=1
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def server_(seeing):
    with serve_in_thread(seeing, body_bytes=40 << 20) as one:
        yield one


@pytest.fixture(scope="module")
def expected(seeing):
    messages = [{"role": "user", "content": PARTS}]
    return seeing.generate(messages, Sampling(temperature=0, max_tokens=20))


@pytest.mark.full
def test_the_openai_client(server_, expected):
    with openai.OpenAI(base_url=f"{server_.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": PARTS}]
        options = {"model": "model", "temperature": 0, "max_tokens": 20}
        answer = client.chat.completions.create(messages=messages, **options)
        assert answer.choices[0].message.content == expected.text
        assert answer.usage.prompt_tokens == expected.stats.n_prompt
        parts = client.chat.completions.create(messages=messages, stream=True, **options)
        assert "".join(one.choices[0].delta.content or "" for one in parts) == expected.text
        other = [PARTS[0], {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
        with pytest.raises(openai.BadRequestError, match="nothing is fetched") as error:
            client.chat.completions.create(messages=[{"role": "user", "content": other}], **options)
        assert error.value.code == "invalid_image"
        assert error.value.param == "messages[0].content[1].image_url.url"
        asked = [{"type": "input_text", "text": "What is it?"}]
        asked += [{"type": "input_image", "image_url": URL, "detail": "auto"}]
        said = client.responses.create(
            model="model",
            input=[{"role": "user", "content": asked}],
            temperature=0,
            max_output_tokens=20,
        )
        assert said.output_text == expected.text
        again = client.responses.create(
            model="model", input="Sure?", previous_response_id=said.id, max_output_tokens=20
        )
        assert again.usage.input_tokens > said.usage.input_tokens


def test_the_other_apis(server_, seeing):
    first = [{"type": "image_url", "image_url": {"url": URL}}, PARTS[0]]
    text = seeing.generate(
        [{"role": "user", "content": first}], Sampling(temperature=0, max_tokens=20)
    ).text
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    body = {"model": "model", "max_tokens": 20, "temperature": 0}
    asked = body | {"messages": [{"role": "user", "content": content}]}
    reply = ask(server_, "POST", "/v1/messages", asked).json()
    assert "".join(one["text"] for one in reply["content"]) == text
    options = {"temperature": 0, "num_predict": 20}
    asked = {"role": "user", "content": "What is it?", "images": [BASE64]}
    body = {"model": "model", "messages": [asked], "options": options, "stream": False}
    assert ask(server_, "POST", "/api/chat", body).json()["message"]["content"] == text
    body = {"model": "model", "prompt": "What is it?", "images": [BASE64], "options": options}
    assert (
        ask(server_, "POST", "/api/generate", body | {"stream": False}).json()["response"] == text
    )
    props = ask(server_, path="/props").json()
    assert props["modalities"]["vision"] is True
    listed = ask(server_, path="/v1/models").json()["data"][0]["architecture"]
    assert listed == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}


@pytest.mark.parametrize(
    "url, words",
    [
        ("http://127.0.0.1/a.png", "nothing is fetched"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("/etc/passwd", "nothing is fetched"),
        (5, "must be a data: URL"),
        (None, "must be a data: URL"),
        ("data:image/png;base64,aGk=", "is not a PNG"),
        ("data:image/png;base64,***", "is not base64"),
        ("data:image/png,aGk=", "without ;base64"),
        ("data:image/png;base64," + "A" * (30 << 20), "too large"),
        (
            "data:image/png;base64,"
            + base64.b64encode(projector_file.png_of(9000, 9000, b"")).decode(),
            "81,000,000|9,000 x 9,000",
        ),
    ],
)
def test_bad_images(server_, url, words):
    content = [{"type": "image_url", "image_url": {"url": url}}]
    reply = ask_chat(server_, messages=[{"role": "user", "content": content}])
    assert reply.status == 400
    assert any(one in reply.json()["error"]["message"] for one in words.split("|"))
    assert reply.param == "messages[0].content[0].image_url.url"


def test_a_damaged_image_ends_only_its_request(server_):
    url = "data:image/png;base64," + base64.b64encode(IMAGE[:90]).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}]
    reply = ask_chat(server_, messages=[{"role": "user", "content": content}])
    assert (reply.status, reply.code, reply.param) == (400, "invalid_image", "messages")
    assert ask_chat(server_).status == 200


def test_images_only_of_the_user(server_):
    for role in ("system", "assistant"):
        reply = ask_chat(server_, messages=[{"role": role, "content": PARTS}])
        assert reply.status == 400
        assert "type must be text" in reply.json()["error"]["message"]


def test_a_model_without_a_projector(server):
    reply = ask_chat(server, messages=[{"role": "user", "content": PARTS}])
    assert (reply.status, reply.code, reply.param) == (400, "no_vision", "messages")
    assert "without a projector" in reply.json()["error"]["message"]
    assert ask(server, path="/props").json()["modalities"]["vision"] is False
    listed = ask(server, path="/v1/models").json()["data"][0]["architecture"]
    assert listed["input_modalities"] == ["text"]
