"""Prometheus text of runners of one kind, told apart by a label."""

from __future__ import annotations


def labelled(text: bytes, runner: str) -> bytes:
    """`text` with `runner="…"` on every sample. Two runners export the same series, and a sum of them here would fall
    whenever one restarts or leaves, which `rate()` takes for a reset of all: so adding up is left to the scraper.

    `runner`: an address, nothing in it to be escaped.
    """
    label = f'runner="{runner}"'.encode()
    lines = []
    for line in text.splitlines():
        if not line or line.startswith(b"#"):
            lines.append(line)
            continue
        name, brace, rest = line.partition(b"{")
        if brace and b" " not in name:
            lines.append(name + b"{" + label + (b"" if rest.startswith(b"}") else b",") + rest)
        else:
            name, _, rest = line.partition(b" ")
            lines.append(name + b"{" + label + b"} " + rest)
    return b"".join(line + b"\n" for line in lines)
