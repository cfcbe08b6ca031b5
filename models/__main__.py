"""`python -m models`: what this service would offer, and whether it can.

    list   [--backend KIND] [--json]     every model, and the files that cannot be served, with why; those of the
                                         backend `fake` only where it is asked for or a variable switches it on
    show   NAME [--json]                 one model's card and what its file says
    pull   NAME [--backend KIND]         fetch it now instead of at its first request
    convert NAME [--output FILE]         a folder of BERT weights (a model's, or any) to the GGUF that llama.cpp reads
    verify [NAME ...] [--json]           files, headers and checksums; of all models by default
    schema                               the catalogue file's JSON schema

Reads the same LLM_... variables as the service. Exit code 0: all is well; 1: a model is unknown, unusable or
out of reach; 2: wrong usage or settings; 130: interrupted."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import console
from models.card import BACKEND_KINDS, FileSource, HubSource, ModelCard, PackageSource
from models.catalogue import Catalogue, CatalogueError, schema_text
from models.convert import convert, is_convertible
from models.errors import ModelError
from models.gguf import GgufHeader, read_header
from models.sources import local_path, materialise, verify_checksum
from settings import SettingsError, load_settings


class ProgressBar:
    """One line on `out` that grows, or a line every tenth where `out` is no terminal."""

    def __init__(self, label: str, out: TextIO) -> None:
        self._label = label
        self._out = out
        self._live = out.isatty()
        self._shown_at = 0.0
        self._tenth = -1

    def __call__(self, done: int, total: int) -> None:
        fraction = min(1.0, done / total) if total else 0.0
        sizes = f"{_size(done)} of {_size(total)}" if total else _size(done)
        if self._live:
            now = time.monotonic()
            if now - self._shown_at < 0.1 and done < total:
                return
            self._shown_at = now
            filled = int(fraction * 30)
            bar = "#" * filled + "-" * (30 - filled)
            self._out.write(f"\r{self._label} [{bar}] {fraction:4.0%} {sizes}\033[K")
        elif int(fraction * 10) > self._tenth:
            self._tenth = int(fraction * 10)
            self._out.write(f"{self._label} {fraction:.0%} {sizes}\n")
        self._out.flush()

    def close(self) -> None:
        """End the line."""
        if self._live and self._shown_at:
            self._out.write("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "schema":
        sys.stdout.write(schema_text())
        return 0
    # What the catalogue logs about files stands in `list` and `verify` with its reason.
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        settings = load_settings()
        catalogue = Catalogue.load(
            settings.catalogue, model_dirs=settings.model_dirs, hub_allow=settings.hub_allow
        )
    except (SettingsError, CatalogueError) as error:
        _complain(str(error))
        return 2
    options.has_fake = "fake" in (settings.default_backend, *(settings.enabled_backends or ()))
    commands = {"list": _list, "show": _show, "pull": _pull, "convert": _convert, "verify": _verify}
    try:
        return commands[options.command](catalogue, options)
    except ModelError as error:
        _complain(error.message)
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models", description="The models this service offers.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every model")
    show = commands.add_parser("show", help="one model's card and file")
    pull = commands.add_parser("pull", help="fetch a model now")
    convert = commands.add_parser("convert", help="make the GGUF of a folder of weights now")
    convert.add_argument(
        "name", help="id or alias of a model whose source is such a folder, or the folder itself"
    )
    convert.add_argument("--output", type=Path, help="write it there too, besides the cache")
    verify = commands.add_parser("verify", help="check files, headers and checksums")
    commands.add_parser("schema", help="the catalogue file's JSON schema")
    for command in (show, pull):
        command.add_argument("name", help="id, alias, file in a model folder, or allowed hub id")
    verify.add_argument("names", nargs="*", metavar="name", help="all models without one")
    for command in (listing, pull):
        command.add_argument("--backend", choices=BACKEND_KINDS, help="only (or for) this backend")
    for command in (listing, show, pull, convert, verify):
        command.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


def _list(catalogue: Catalogue, options: argparse.Namespace) -> int:
    cards = [
        card
        for card in catalogue.cards(options.backend)
        if options.has_fake or options.backend == "fake" or card.backends != ("fake",)
    ]
    broken = catalogue.broken()
    if options.json:
        _print_json({"models": [_plain(card) for card in cards], "broken": dict(broken)})
        return 0
    rows = [("ID", "BACKENDS", "CONTEXT", "CAPABILITIES", "SOURCE")]
    rows += [
        (
            card.id,
            ",".join(card.backends),
            str(card.context_length or "-"),
            ",".join(card.capabilities),
            _origin(card),
        )
        for card in cards
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]))
    for name, problem in broken.items():
        _complain(f"not listed: {name}: {problem}")
    return 0


def _show(catalogue: Catalogue, options: argparse.Namespace) -> int:
    card = catalogue.resolve(options.name)
    path = local_path(card, "llamacpp")
    header = read_header(path) if path is not None else None
    description = _plain(card) | ({"file": _file_facts(path, header)} if path and header else {})
    if options.json:
        _print_json(description)
        return 0
    for key, value in description.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for inner, text in value.items():
                print(f"  {inner}: {_line(text)}")
        else:
            print(f"{key}: {_line(value)}")
    return 0


def _pull(catalogue: Catalogue, options: argparse.Namespace) -> int:
    card = catalogue.resolve(options.name)
    kind = options.backend or card.backend
    bar = ProgressBar(card.id, sys.stderr)
    try:
        path = materialise(card, kind, on_progress=bar)
    finally:
        bar.close()
    if path.is_file() and kind == "llamacpp":
        read_header(path)
    if options.json:
        _print_json({"id": card.id, "backend": kind, "path": str(path)})
    else:
        print(path)
    return 0


def _convert(catalogue: Catalogue, options: argparse.Namespace) -> int:
    folder = Path(options.name)
    bar = ProgressBar(options.name, sys.stderr)
    try:
        if is_convertible(folder):
            path = convert(folder, on_progress=bar)
        else:
            path = materialise(catalogue.resolve(options.name), "llamacpp", on_progress=bar)
    finally:
        bar.close()
    if options.output is not None:
        try:
            shutil.copyfile(path, options.output)
        except OSError as error:
            _complain(f"{options.output} cannot be written: {(error.strerror or str(error)).lower()}")
            return 1
        path = options.output
    if options.json:
        _print_json({"name": options.name, "path": str(path)})
    else:
        print(path)
    return 0


def _verify(catalogue: Catalogue, options: argparse.Namespace) -> int:
    cards = [catalogue.resolve(name) for name in options.names] or list(catalogue.cards())
    results = [_verdict(card) for card in cards]
    if not options.names:
        results += [
            {"id": name, "ok": False, "message": problem} for name, problem in catalogue.broken().items()
        ]
    if options.json:
        _print_json({"models": results})
    else:
        for result in results:
            mark = {True: "ok", False: "FAILED", None: "skipped"}[result["ok"]]
            print(f"{mark:8}{result['id']}: {result['message']}")
    return 1 if any(result["ok"] is False for result in results) else 0


def _verdict(card: ModelCard) -> dict[str, Any]:
    """`ok` is None for what cannot be judged without fetching or asking somebody."""
    local = [kind for kind, source in card.sources.items() if isinstance(source, FileSource | PackageSource)]
    if not local:
        fetched = any(isinstance(source, HubSource) for source in card.sources.values())
        return {
            "id": card.id,
            "ok": None,
            "message": "not fetched to be verified" if fetched else "served elsewhere",
        }
    bar = ProgressBar(card.id, sys.stderr)
    try:
        for kind in local:
            # Without its checksum, so that this costs no second read of what is hashed below.
            path = materialise(card.model_copy(update={"sha256": None}), kind, on_progress=_ignore)
            if path.is_file():
                read_header(path)
                if card.sha256:
                    verify_checksum(path, card.sha256, on_progress=bar, again=True)
    except ModelError as error:
        return {"id": card.id, "ok": False, "message": error.message}
    finally:
        bar.close()
    return {
        "id": card.id,
        "ok": True,
        "message": "checksum matches" if card.sha256 else "whole; no checksum given",
    }


def _ignore(_done: int, _total: int) -> None:
    """Finding a file needs no bar."""


def _plain(card: ModelCard) -> dict[str, Any]:
    return card.model_dump(mode="json", exclude_none=True)


def _file_facts(path: Path, header: GgufHeader) -> dict[str, Any]:
    return {
        "path": str(path),
        "size_bytes": header.file_bytes,
        "shards": header.num_shards,
        "architecture": header.architecture,
        "name": header.name,
        "quantisation": header.quantisation,
        "parameters": header.num_parameters,
        "layers": header.block_count,
        "vocabulary": header.vocab_size,
        "context_length": header.context_length,
        "chat_template": header.chat_template is not None,
    }


def _origin(card: ModelCard) -> str:
    source = card.sources[card.backend]
    match source:
        case FileSource():
            return source.path
        case PackageSource():
            return f"package {source.package}"
        case HubSource():
            return f"hub {source.repo}" + (f"/{source.file}" if source.file else "")
        case _:
            return f"remote {source.name}"


def _line(value: object) -> str:
    if isinstance(value, dict | list | bool) or value is None:
        return json.dumps(value, ensure_ascii=False)
    text = str(value)
    return (
        text if len(text) <= 200 and "\n" not in text else json.dumps(text[:200], ensure_ascii=False) + " …"
    )


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def _print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, indent=2))


def _complain(message: str) -> None:
    print(message, file=sys.stderr)


if __name__ == "__main__":
    console.run(main)
