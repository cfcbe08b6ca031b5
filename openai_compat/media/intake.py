"""From the messages of a request to the same messages with checked pictures, each a data URL."""

from __future__ import annotations

import asyncio
import binascii
from dataclasses import dataclass
from typing import Any, Final

from yarl import URL

from backends.errors import InvalidParameter
from openai_compat.media.allowed import AllowedHosts
from openai_compat.media.data_url import is_data_url, read_data_url, written
from openai_compat.media.fetch import Fetcher, FetchFailed, LookUp
from openai_compat.media.formats import BrokenPicture, Picture, read_picture
from openai_compat.media.limits import MediaLimits

Messages = list[dict[str, Any]]

IN_PASSING_CHARS: Final = 1 << 16
"""Shorter data URLs are looked at where they are; longer ones would keep everybody else waiting, and get a thread."""


@dataclass(frozen=True, slots=True)
class _Place:
    message: int
    part: int

    @property
    def param(self) -> str:
        return f"messages[{self.message}].content[{self.part}].image_url"


class Intake:
    """One for all requests. `look_up` stands for the system's resolver in tests."""

    def __init__(self, limits: MediaLimits, *, look_up: LookUp | None = None) -> None:
        self._limits = limits
        self._fetcher = Fetcher(AllowedHosts(limits.allow), max_fetches=limits.max_fetches, look_up=look_up)

    async def take(self, messages: Messages) -> Messages:
        """Messages that met the schema, with every `image_url` a data URL of a picture within the limits. Other members
        of the part stay as they are. The same link is fetched once. Cancelling it ends what is being fetched.

        Raises: InvalidParameter naming the picture's place; Overloaded.
        """
        urls = _urls(messages)
        if len(urls) > self._limits.max_images:
            raise _invalid(
                list(urls)[self._limits.max_images],
                f"is one of {len(urls)} pictures; a request may have {self._limits.max_images}",
            )
        links = {place: self._link(place, url) for place, url in urls.items() if not is_data_url(url)}
        tally = _Tally(self._limits)
        taken: dict[_Place, str] = {}
        for place, url in urls.items():
            if place not in links:
                taken[place] = await self._read(place, url, tally)
        if links:
            taken |= await self._fetch_all(links, tally)
        return _replaced(messages, taken)

    def _link(self, place: _Place, url: str) -> URL:
        try:
            return self._fetcher.check(url)
        except FetchFailed as error:
            raise _invalid(place, str(error)) from None

    async def _read(self, place: _Place, url: str, tally: _Tally) -> str:
        try:
            if len(url) <= IN_PASSING_CHARS:
                picture, text = read_data_url(url, self._limits)
            else:
                picture, text = await asyncio.to_thread(read_data_url, url, self._limits)
            tally.add(picture, len(text))
        except BrokenPicture as error:
            raise _invalid(place, str(error)) from None
        return written(picture.mime, text)

    async def _fetch_all(self, links: dict[_Place, URL], tally: _Tally) -> dict[_Place, str]:
        """The first that fails ends the others."""
        deadline = asyncio.get_running_loop().time() + self._limits.timeout_s
        first: dict[URL, _Place] = {}
        for place, url in links.items():
            first.setdefault(url, place)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    url: group.create_task(self._fetch(place, url, tally, deadline))
                    for url, place in first.items()
                }
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {place: tasks[url].result() for place, url in links.items()}

    async def _fetch(self, place: _Place, url: URL, tally: _Tally, deadline: float) -> str:
        try:
            data = await self._fetcher.fetch(url, max_bytes=self._limits.max_bytes, deadline=deadline)
            picture = await asyncio.to_thread(read_picture, data)
            text = await asyncio.to_thread(binascii.b2a_base64, data, newline=False)
            tally.add(picture, len(text))
        except (FetchFailed, BrokenPicture) as error:
            raise _invalid(place, str(error)) from None
        return written(picture.mime, text.decode("ascii"))

    async def aclose(self) -> None:
        await self._fetcher.aclose()


class _Tally:
    """What a request's pictures are together. Raises: BrokenPicture."""

    def __init__(self, limits: MediaLimits) -> None:
        self._limits = limits
        self._pixels = 0
        self._bytes = 0

    def add(self, picture: Picture, num_bytes: int) -> None:
        """`num_bytes`: in base64."""
        limits = self._limits
        if picture.frames > limits.max_frames:
            raise BrokenPicture(f"has {picture.frames} frames; {limits.max_frames} may be sent")
        self._pixels += picture.pixels
        self._bytes += num_bytes
        if self._pixels > limits.max_pixels:
            size = f"{picture.width}x{picture.height}"
            raise BrokenPicture(f"is {size} and too large: {limits.max_pixels} pixels may be sent in all")
        if self._bytes > limits.max_total_bytes:
            raise BrokenPicture(f"is too large: {limits.max_total_bytes} bytes of base64 may be sent in all")


def has_pictures(messages: Messages) -> bool:
    return any(
        part["type"] == "image_url"
        for message in messages
        if type(content := message.get("content")) is list
        for part in content
    )


def _urls(messages: Messages) -> dict[_Place, str]:
    return {
        _Place(index, position): part["image_url"]["url"]
        for index, message in enumerate(messages)
        if type(content := message.get("content")) is list
        for position, part in enumerate(content)
        if part["type"] == "image_url"
    }


def _replaced(messages: Messages, urls: dict[_Place, str]) -> Messages:
    replaced = list(messages)
    for place, url in urls.items():
        message = replaced[place.message]
        if message is messages[place.message]:
            message = replaced[place.message] = {**message, "content": list(message["content"])}
        part = message["content"][place.part]
        message["content"][place.part] = {**part, "image_url": {**part["image_url"], "url": url}}
    return replaced


def _invalid(place: _Place, what: str) -> InvalidParameter:
    return InvalidParameter(f"{place.param}: the picture {what}", param=place.param)
