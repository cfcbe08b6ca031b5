"""`python -m openai_compat hash-token`: what the principals file keeps of a token.

The token is read from standard input, where no process list shows it; `--new` makes one.
"""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys
from collections.abc import Sequence

from openai_compat.principals import digest_of

NEW_BYTES = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for a token that could never be sent."""
    parser = argparse.ArgumentParser(prog="python -m openai_compat", description="Tools for operators.")
    commands = parser.add_subparsers(dest="command", required=True)
    hashing = commands.add_parser(
        "hash-token", help="the token_sha256 of a token, which is read from standard input"
    )
    hashing.add_argument("--new", action="store_true", help="make a new token and show it first")
    options = parser.parse_args(arguments)
    if options.new:
        token = secrets.token_urlsafe(NEW_BYTES)
        print(f"token: {token}")
    elif sys.stdin.isatty():
        token = getpass.getpass("Token: ")
    else:
        token = sys.stdin.readline().strip()
    if not token or any(char.isspace() or not char.isprintable() for char in token):
        print("A token is not empty and holds no blanks", file=sys.stderr)
        return 2
    print(f"token_sha256: {digest_of(token.encode()).hex()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
