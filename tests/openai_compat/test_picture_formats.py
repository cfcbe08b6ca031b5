"""What is read from a picture without decoding it."""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_compat.media.formats import MAX_PARTS, BrokenPicture, Picture, read_picture
from tests.openai_compat import pictures
from tests.openai_compat.pictures import chunk, png

WHOLE = {
    "png": (pictures.PNG, Picture("image/png", 7, 5)),
    "apng": (pictures.PNG_ANIMATED, Picture("image/png", 4, 3, 3)),
    "jpeg": (pictures.JPEG, Picture("image/jpeg", 9, 6)),
    "progressive jpeg": (pictures.JPEG_PROGRESSIVE, Picture("image/jpeg", 9, 6)),
    "gif": (pictures.GIF, Picture("image/gif", 6, 4)),
    "animated gif": (pictures.GIF_ANIMATED, Picture("image/gif", 6, 4, 3)),
    "lossy webp": (pictures.WEBP_LOSSY, Picture("image/webp", 10, 8)),
    "lossless webp": (pictures.WEBP_LOSSLESS, Picture("image/webp", 10, 8)),
    "animated webp": (pictures.WEBP_ANIMATED, Picture("image/webp", 10, 8, 2)),
    "webp with transparency": (pictures.WEBP_EXTENDED, Picture("image/webp", 11, 8)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_type_size_and_frames_are_read(name: str) -> None:
    data, picture = WHOLE[name]

    assert read_picture(data) == picture


@pytest.mark.parametrize("name", WHOLE)
def test_a_picture_that_was_cut_off_anywhere_is_refused(name: str) -> None:
    data, _ = WHOLE[name]
    for length in range(len(data)):
        with pytest.raises(BrokenPicture):
            read_picture(data[:length])


@pytest.mark.parametrize("name", WHOLE)
def test_what_stands_after_a_picture_does_no_harm(name: str) -> None:
    data, picture = WHOLE[name]

    assert read_picture(data + b"\0" * 7) == picture


@pytest.mark.parametrize("position", range(8, len(pictures.PNG)))
def test_a_png_with_any_bit_turned_over_is_refused(position: int) -> None:
    data = bytearray(pictures.PNG)
    data[position] ^= 0x10

    with pytest.raises(BrokenPicture):
        read_picture(bytes(data))


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_whatever_a_damaged_picture_holds_the_answer_is_a_picture_or_a_refusal(
    name: str, draw: st.DataObject
) -> None:
    data = bytearray(WHOLE[name][0])
    for position in draw.draw(st.lists(st.integers(0, len(data) - 1), max_size=6)):
        data[position] = draw.draw(st.integers(0, 255))
    with suppress(BrokenPicture):
        assert read_picture(bytes(data)).pixels > 0


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF\x40\0\0\0WEBP"]), st.binary()
)
def test_any_bytes_after_a_signature_are_a_picture_or_a_refusal(start: bytes, rest: bytes) -> None:
    with suppress(BrokenPicture):
        read_picture(start + rest)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        b'<?xml version="1.0"?><svg/>',
        b"<!doctype html><html></html>",
        b"BM" + bytes(60),
        b"II*\0" + bytes(60),
        b"%PDF-1.7",
        b"RIFF\x24\0\0\0WAVEfmt ",
        b"\0\0\0\x20ftypavif" + bytes(60),
    ],
)
def test_other_kinds_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenPicture, match="no PNG, JPEG, WebP or GIF"):
        read_picture(data)


def test_the_size_that_a_small_file_claims_is_what_counts() -> None:
    """A bomb: some bytes of zeros that a decoder makes gigabytes of."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 20))
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")

    assert read_picture(bomb).pixels == 3_600_000_000


def test_a_gif_whose_picture_is_larger_than_its_screen_counts_as_that() -> None:
    data = bytearray(pictures.GIF)
    at = data.index(b"\x2c", 13)
    data[at + 5 : at + 9] = struct.pack("<HH", 5000, 4000)

    assert (read_picture(bytes(data)).width, read_picture(bytes(data)).height) == (5000, 4000)


def test_a_webp_whose_frame_is_larger_than_its_canvas_counts_as_that() -> None:
    data = bytearray(pictures.WEBP_ANIMATED)
    at = data.index(b"ANMF") + 8
    data[at + 6 : at + 12] = (9999).to_bytes(3, "little") + (7999).to_bytes(3, "little")

    assert (read_picture(bytes(data)).width, read_picture(bytes(data)).height) == (10_000, 8000)


def test_a_png_whose_pixels_cannot_be_unpacked_is_refused() -> None:
    whole = png()
    hollow = whole[: whole.index(b"IDAT") - 4] + chunk(b"IDAT", b"nonsense") + chunk(b"IEND", b"")

    with pytest.raises(BrokenPicture, match="cannot be unpacked"):
        read_picture(hollow)


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(BrokenPicture, match="no pixels"):
        read_picture(png(*size))


def test_a_jpeg_with_an_unusual_coding_is_refused() -> None:
    at = pictures.JPEG.index(b"\xff\xc0")
    arithmetic = pictures.JPEG[: at + 1] + b"\xc9" + pictures.JPEG[at + 2 :]

    with pytest.raises(BrokenPicture, match="coding"):
        read_picture(arithmetic)


@pytest.mark.parametrize(
    "data",
    [
        png(chunks=chunk(b"tEXt", b"") * (MAX_PARTS + 1)),
        b"\xff\xd8" + b"\xff\xe0\0\x02" * (MAX_PARTS + 1),
        b"GIF89a\1\0\1\0\0\0\0" + b"\x21\xfe\0" * (2 * MAX_PARTS),
        b"GIF89a\1\0\1\0\0\0\0\x21\xfe" + b"\1x" * (2 * MAX_PARTS),
        b"RIFF\xff\xff\x0f\0WEBP" + b"EXIF\0\0\0\0" * (2 * MAX_PARTS + 1),
    ],
    ids=["png", "jpeg", "gif", "gif blocks", "webp"],
)
def test_a_file_of_very_many_parts_is_not_walked_to_its_end(data: bytes) -> None:
    with pytest.raises(BrokenPicture, match="too many parts"):
        read_picture(data)
