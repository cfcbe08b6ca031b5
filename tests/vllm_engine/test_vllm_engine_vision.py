"""Pictures on the real vLLM, through a real `bentoml serve`: they change what the model says, they count, and nothing
but the gateway fetches them."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.backends.provider_upstreams.server import Call, Upstream, Wire, upstream
from tests.conformance.conftest import Instance
from tests.openai_compat.pictures import (
    EVERY_KIND,
    GIF,
    JPEG,
    WEBP_LOSSLESS,
    WEBP_LOSSY,
    data_url,
    png,
    shown,
)
from tests.vllm_engine.conftest import CARD_ARGS
from tests.vllm_engine.vision_weights import TOKENS_PER_PICTURE

MODEL = "tiny-vl"
CONTEXT = 512
RED, BLUE = data_url(png(40, 30, b"\xff\x10\x10")), data_url(png(40, 30, b"\x10\x10\xff"))


@pytest.fixture(scope="module")
def pictures() -> Iterator[Upstream]:
    """A server of pictures on an event loop of its own, whose log says who came."""

    async def answer(_: Call, wire: Wire) -> None:
        await wire.whole(200, JPEG, "image/jpeg")

    found: list[Upstream] = []
    is_up, is_over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with upstream(answer) as one:
            found.append(one)
            is_up.set()
            await is_over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert is_up.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(is_over.set)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def instance(
    vllm_python: str, weights: Path, pictures: Upstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Instance]:
    home = tmp_path_factory.mktemp("vision")
    folder = home / "weights"
    maker = Path(__file__).with_name("vision_weights.py")
    subprocess.run([vllm_python, str(maker), str(weights), str(folder)], check=True, timeout=300)
    own = {"sources": {"vllm": {"path": str(folder)}}, "vllm": {"extra_args": list(CARD_ARGS)}}
    cards = [{"id": MODEL, "capabilities": ["chat", "vision"], **own}, {"id": "blind", **own}]
    catalogue = home / "catalogue.yaml"
    catalogue.write_text(json.dumps({"models": cards}))
    settings = {
        "LLM_DEFAULT_BACKEND": "vllm",
        "LLM_CATALOGUE": str(catalogue),
        "LLM_RATE_LIMIT_RPS": "0",
        # The first start on a machine looks at the architecture in a process of its own.
        "LLM_REQUEST_TIMEOUT_S": "560",
        "LLM_MEDIA_ALLOW": f"127.0.0.1:{pictures.port}",
        "LLM_ARGS__VLLM__PYTHON": vllm_python,
        "LLM_ARGS__VLLM__KV_CACHE_SPACE_GIB": "0.25",
        "LLM_ARGS__VLLM__MAX_NUM_SEQS": "4",
        "LLM_ARGS__VLLM__MAX_MODEL_LEN": str(CONTEXT),
    }
    instance = Instance(home, settings)
    try:
        instance.wait_until_ready()
        loading = httpx.post(
            f"{instance.base_url}/v1/models/load", json={"model": MODEL, "backend": "vllm"}, timeout=550
        )
        assert loading.status_code == 200, loading.text
        yield instance
    finally:
        instance.stop()


@pytest.fixture
def sdk(instance: Instance) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{instance.base_url}/v1", api_key="none", max_retries=0, timeout=120
    ) as client:
        yield client


@pytest.fixture
def http(instance: Instance) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=instance.base_url, timeout=120, trust_env=False) as client:
        yield client


def ask(sdk: openai.OpenAI, messages: list[Any], **fields: Any) -> Any:
    wanted = {"max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3, **fields}
    return sdk.chat.completions.create(model=MODEL, messages=messages, **wanted)


def logprobs_of(answer: Any) -> list[float]:
    return [token.logprob for token in answer.choices[0].logprobs.content]


def far_apart(one: list[float], other: list[float]) -> bool:
    return any(not math.isclose(a, b, abs_tol=0.01) for a, b in zip(one, other, strict=True))


def test_the_list_says_that_the_model_sees(http: httpx.Client) -> None:
    (entry,) = [one for one in http.get("/v1/models").json()["data"] if one["id"] == MODEL]

    assert entry["capabilities"] == ["chat", "vision"]


def test_the_picture_changes_what_the_model_says(sdk: openai.OpenAI) -> None:
    red, again, blue = (ask(sdk, shown(url)) for url in (RED, RED, BLUE))

    assert not far_apart(logprobs_of(red), logprobs_of(again))
    assert red.choices[0].message.content == again.choices[0].message.content
    assert far_apart(logprobs_of(red), logprobs_of(blue))


def test_the_tokens_of_pictures_count(sdk: openai.OpenAI) -> None:
    plain, one, two = (ask(sdk, shown(*urls)).usage.prompt_tokens for urls in ((), (RED,), (RED, BLUE)))

    # A picture brings its tokens, and what the template puts between it and the text.
    assert one - plain >= TOKENS_PER_PICTURE
    assert TOKENS_PER_PICTURE <= two - one < TOKENS_PER_PICTURE + 4


def test_a_stream_says_what_a_whole_answer_says(sdk: openai.OpenAI) -> None:
    whole = ask(sdk, shown(RED), max_tokens=8)
    chunks = list(ask(sdk, shown(RED), max_tokens=8, stream=True, stream_options={"include_usage": True}))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("mime", EVERY_KIND)
def test_every_kind_that_is_taken_here_is_taken_there(sdk: openai.OpenAI, mime: str) -> None:
    assert ask(sdk, shown(data_url(EVERY_KIND[mime], mime))).usage.completion_tokens == 4


def test_a_link_is_the_picture_behind_it(sdk: openai.OpenAI, pictures: Upstream) -> None:
    before = pictures.connections
    linked = ask(sdk, shown(f"{pictures.url}/a.jpg"))
    direct = ask(sdk, shown(data_url(JPEG, "image/jpeg")))

    assert not far_apart(logprobs_of(linked), logprobs_of(direct))
    assert linked.usage == direct.usage
    assert pictures.connections == before + 1


def test_the_detail_that_vllm_has_not_is_named(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": shown(RED, detail="low"), "max_tokens": 1}

    assert http.post("/v1/chat/completions", json=body).headers["x-llm-ignored"] == "image_url.detail"


def test_tokenize_tells_as_many_tokens_as_the_answer_counts(sdk: openai.OpenAI, http: httpx.Client) -> None:
    told = http.post("/tokenize", json={"model": MODEL, "messages": shown(RED)})

    assert told.status_code == 200, told.text
    assert told.json()["count"] == ask(sdk, shown(RED)).usage.prompt_tokens


def test_pictures_that_do_not_fit_are_a_prompt_that_is_too_long(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(sdk, shown(*[RED] * 9, text="word " * 400))

    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("mime", "whole", "kept"),
    [
        ("image/webp", WEBP_LOSSY, WEBP_LOSSY.index(b"\x9d\x01\x2a") + 7),
        ("image/webp", WEBP_LOSSLESS, WEBP_LOSSLESS.index(b"VP8L") + 13),
        ("image/gif", GIF, len(GIF) - 12),
    ],
    ids=["lossy webp", "lossless webp", "gif"],
)
def test_a_picture_that_only_a_decoder_finds_broken_is_400_by_its_place(
    sdk: openai.OpenAI, mime: str, whole: bytes, kept: int
) -> None:
    """Its parts are whole, its pixels make no sense."""
    broken = whole[:kept] + b"\xff" * (len(whole) - kept - 3) + whole[-3:]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(sdk, shown(data_url(broken, mime)))

    assert refused.value.param == "messages[0].content[1].image_url"
    assert ask(sdk, shown(RED)).usage.completion_tokens == 4


def test_a_card_without_sight_takes_no_pictures_whatever_its_weights_are(http: httpx.Client) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "blind", "messages": shown(RED)})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert answer.json()["error"]["param"] == "messages[0].content[1]"


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
@pytest.mark.parametrize("url", ["{pictures}/a.jpg", "file:///etc/hostname", "http://no%20host/a.png"])
def test_vllm_itself_opens_no_link_when_it_is_asked_to(
    instance: Instance, pictures: Upstream, kind: str, url: str
) -> None:
    """Past our own checks, over the socket of its own."""
    before = pictures.connections
    part = {"type": kind, kind: {"url": url.format(pictures=pictures.url)}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    transport = httpx.HTTPTransport(uds=socket_of(instance))
    with httpx.Client(transport=transport, base_url="http://engine", timeout=60) as engine:
        answer = engine.post("/v1/chat/completions", json=body)

    assert answer.status_code >= 400
    assert pictures.connections == before


def socket_of(instance: Instance) -> str:
    """Of vLLM's server, from its command line."""
    for process in psutil.Process(instance.process.pid).children(recursive=True):
        for word in process.cmdline():
            if word.startswith("--uds="):
                return word.removeprefix("--uds=")
    raise AssertionError("vLLM does not run")


def test_no_picture_is_in_the_log(instance: Instance) -> None:
    log = instance.log.read_text()

    assert "iVBORw0KGgo" not in log
    assert "base64," not in log
