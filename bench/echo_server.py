"""What the echo is compared with: uvicorn and Starlette answering the same request themselves, in one process.

Run as `uvicorn bench.echo_server:app`. It reads the JSON, and answers in the form of a chat completion.
"""

from __future__ import annotations

import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


async def echo(request: Request) -> Response:
    body = await request.json()
    message = {"role": "assistant", "content": body["messages"][-1]["content"]}
    return JSONResponse(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


app = Starlette(routes=[Route("/v1/chat/completions", echo, methods=["POST"])])
