"""Pictures that are written into the request."""

from __future__ import annotations

from base64 import b64encode

import pytest

from openai_compat.media.data_url import is_data_url, read_data_url
from openai_compat.media.formats import BrokenPicture
from openai_compat.media.limits import MediaLimits
from tests.openai_compat.pictures import EVERY_KIND, JPEG, PNG, data_url, png

LIMITS = MediaLimits()


@pytest.mark.parametrize("mime", EVERY_KIND)
def test_a_picture_comes_out_as_it_was_written(mime: str) -> None:
    picture, text = read_data_url(data_url(EVERY_KIND[mime], mime), LIMITS)

    assert picture.mime == mime
    assert text == b64encode(EVERY_KIND[mime]).decode()


@pytest.mark.parametrize(
    "head", ["DATA:IMAGE/PNG;BASE64", "data:image/png;name=a.png;base64", "data:image/x-png;base64"]
)
def test_other_spellings_of_the_head_are_taken(head: str) -> None:
    url = f"{head},{b64encode(PNG).decode()}"

    assert is_data_url(url)
    assert read_data_url(url, LIMITS)[0].mime == "image/png"


def test_a_jpeg_may_be_called_jpg() -> None:
    assert read_data_url(data_url(JPEG, "image/jpg"), LIMITS)[0].mime == "image/jpeg"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:", "no data URL"),
        ("data:,abc", "no data URL"),
        ("data:image/png,abc", "no data URL"),
        ("data:image/png;base64", "no data URL"),
        ("data:image/png;base64;base64,iVBORw0KGgo=", "no data URL"),
        ("data:image/svg+xml,<svg/>", "no data URL"),
        ("data:image/png" + ";a=b" * 100 + ";base64,iVBORw0KGgo=", "no data URL"),
        ("data:image/png;base64,", "no PNG, JPEG, WebP or GIF"),
        ("data:image/png;base64,%%%%", "base64"),
        ("data:image/png;base64,iVBORw0KGg", "base64"),
        ("data:image/png;base64,iVBORw0KGgo==", "base64"),
        ("data:image/png;base64,iVBO Rw0KGgo=", "base64"),
        ("data:image/png;base64,iVBORw0K\nGgo=", "base64"),
        ("data:image/png;base64,iVBORw0KGgo\u00e9", "base64"),
        ("data:image/png;base64,iVBORw0KGg_-", "base64"),
        ("data:image/png;base64,aGVsbG8=", "no PNG, JPEG, WebP or GIF"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "no PNG, JPEG, WebP or GIF"),
        (data_url(PNG, "image/jpeg"), "called image/jpeg and is image/png"),
        (data_url(JPEG, "image/png"), "called image/png and is image/jpeg"),
        (data_url(PNG, "text/html"), "called text/html and is image/png"),
        (data_url(PNG[:-3]), "ends before it is complete"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(url: str, words: str) -> None:
    with pytest.raises(BrokenPicture, match=words):
        read_data_url(url, LIMITS)


def test_the_size_counts_as_it_is_stored_to_the_byte() -> None:
    picture = png(40, 40)

    assert read_data_url(data_url(picture), MediaLimits(max_bytes=len(picture)))
    with pytest.raises(BrokenPicture, match=f"larger than {len(picture) - 1} bytes"):
        read_data_url(data_url(picture), MediaLimits(max_bytes=len(picture) - 1))


def test_what_is_much_too_large_is_not_decoded() -> None:
    with pytest.raises(BrokenPicture, match="larger than 1024 bytes"):
        read_data_url("data:image/png;base64," + "!" * 1_000_000, MediaLimits(max_bytes=1024))
