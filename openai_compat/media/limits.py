"""How much a request's pictures may be, and where they may come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class MediaLimits:
    """Sizes in bytes as the picture is stored, not in base64; pixels are width · height · frames."""

    allow: tuple[str, ...] = ()
    """Where links may lead (`allowed`); empty: nowhere."""
    max_images: int = 10
    """Pictures of one request."""
    max_bytes: int = 10 << 20
    """Of one picture."""
    max_pixels: int = 64_000_000
    """Of all pictures of a request together."""
    max_frames: int = 1
    """Of one picture."""
    timeout_s: float = 10.0
    """For everything that a request names, from the first look-up to the last byte."""
    max_fetches: int = 8
    """At once, of all requests of this process."""
    max_total_bytes: int = 16 << 20
    """Of all pictures of a request together, in base64: as large as a body may be."""
