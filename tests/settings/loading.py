"""Settings from given variables or arguments, and the words in which they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from settings import Args, Settings, SettingsError, load_settings


def load(monkeypatch: pytest.MonkeyPatch, args: Args | None = None, /, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings(args)


def refused(monkeypatch: pytest.MonkeyPatch, /, **variables: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(monkeypatch, **variables)
    return str(caught.value)


def refused_args(**data: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Args(**data)
    return str(caught.value)
