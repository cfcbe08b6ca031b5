"""`python -m openai_compat COMMAND`: tools for whoever runs the service, or any server like it.

hash-token           what the principals file keeps of a token
conformance          the contract's behaviours against a running server
conformance-table    several runs of it side by side
replay               the request of a receipt once more, and whether it gets the same answer
"""

from __future__ import annotations

import argparse
import getpass
import secrets
import sys
from collections.abc import Sequence

import console

NEW_BYTES = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m openai_compat", description="Tools for operators.")
    commands = parser.add_subparsers(dest="command", required=True)
    hashing = commands.add_parser(
        "hash-token", help="the token_sha256 of a token, which is read from standard input"
    )
    hashing.add_argument("--new", action="store_true", help="make a new token and show it first")
    trying = commands.add_parser("conformance", help="try the contract's behaviours on a running server")
    trying.add_argument("--base-url", required=True, help="the server, with or without /v1")
    trying.add_argument("--model", required=True, help="the model to ask it for")
    trying.add_argument("--api-key", help="its bearer token, if it wants one")
    trying.add_argument("--json", action="store_true", help="JSON instead of a table")
    trying.add_argument(
        "--extensions",
        action=argparse.BooleanOptionalAction,
        help="try what only this service promises, too (default: if the server is one)",
    )
    trying.add_argument("--only", metavar="TEXT", help="the behaviours whose names hold this")
    comparing = commands.add_parser("conformance-table", help="Markdown of several runs with --json")
    comparing.add_argument("files", nargs="+", help="a file's name without its end is the server's")
    replaying = commands.add_parser("replay", help="send the request of a receipt once more, and compare")
    replaying.add_argument(
        "file", help="a receipt, an answer or a stream that holds one; - is standard input"
    )
    replaying.add_argument("--base-url", required=True, help="the server, with or without /v1")
    replaying.add_argument("--api-key", help="its bearer token, if it wants one")
    replaying.add_argument(
        "--request", metavar="FILE", help="the request's body, where the receipt has it not"
    )
    replaying.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="for the answer, in seconds"
    )
    replaying.add_argument("--json", action="store_true", help="JSON instead of words")
    options = parser.parse_args(arguments)
    # What a command needs is imported when it runs: the conformance checks need nothing of the service.
    if options.command == "conformance":
        from openai_compat.conformance.run import run

        return run(
            base_url=options.base_url,
            model=options.model,
            api_key=options.api_key,
            extensions=options.extensions,
            as_json=options.json,
            only=options.only,
        )
    if options.command == "replay":
        from openai_compat.replay.run import run as replay

        return replay(
            file=options.file,
            base_url=options.base_url,
            api_key=options.api_key,
            request_file=options.request,
            timeout_s=options.timeout,
            as_json=options.json,
        )
    if options.command == "conformance-table":
        from openai_compat.conformance.compare import NoRun, comparison

        try:
            print(comparison(options.files), end="")
        except NoRun as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    return hash_token(new=options.new)


def hash_token(*, new: bool) -> int:
    """Shows the digest of the token that standard input gives, where no process list shows it. 2 for a token that could
    never be sent."""
    from openai_compat.principals import digest_of

    if new:
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
    console.run(main)
