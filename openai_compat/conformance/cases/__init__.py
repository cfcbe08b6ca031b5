"""The behaviours, a module for each group."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

from openai_compat.conformance.check import Check, checks_in

GROUPS: Final = (
    "auth",
    "errors",
    "http",
    "messages",
    "params",
    "structured",
    "streaming",
    "limits",
    "models",
    "lifecycle",
    "security",
    "clients",
)
NEEDS: Final = {"clients": "openai"}
"""What a group needs besides the service's own packages."""


def left_out() -> dict[str, str]:
    """The groups that cannot be tried here, each with the package that is not installed."""
    return {group: package for group, package in NEEDS.items() if find_spec(package) is None}


def all_checks() -> list[Check]:
    """All that can be tried here, in order."""
    groups = [group for group in GROUPS if group not in left_out()]
    return [check for group in groups for check in checks_in(import_module(f"{__name__}.{group}"))]
