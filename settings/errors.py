"""The one way in which settings stop the start."""

from __future__ import annotations


class SettingsError(Exception):
    """The service cannot start like this. The message is for the operator: one problem per line, each with
    the key, its value (masked where it is secret) and what is allowed. Not a ValueError: pydantic lets it
    pass unwrapped."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
