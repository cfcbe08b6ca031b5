"""When the phases of one completion began, and when its next limit is due. Nothing here waits or acts.

begun ─ admitted ─ asked ─ started ─ first ─ … ─ last
                     └ once per attempt, with what follows it
"""

from __future__ import annotations

import math
from typing import Final

from openai_compat.config import WireConfig
from openai_compat.serving.stream import StreamWriter

_MIN_SLEEP_S: Final = 0.02
"""A limit that is configured shorter than this is kept this exactly; without a floor, 0 would spin."""


class Clock:
    """Loop seconds throughout. None: not yet."""

    __slots__ = (
        "_config",
        "admitted_at",
        "asked_at",
        "asked_state_at",
        "begun_at",
        "first_at",
        "last_at",
        "started_at",
    )

    def __init__(self, config: WireConfig, now: float) -> None:
        self._config = config
        self.begun_at = now
        self.admitted_at: float | None = None
        self.asked_at = 0.0
        """When the attempt began; later times are the attempt's too."""
        self.started_at: float | None = None
        self.first_at: float | None = None
        self.last_at = 0.0
        self.asked_state_at: float | None = None

    def admit(self, now: float) -> None:
        self.admitted_at = self.asked_at = now

    def begin_attempt(self, now: float) -> None:
        """`now` is infinite where nothing is to be due until another one begins."""
        self.asked_at = now
        self.started_at = self.first_at = self.asked_state_at = None

    def heard(self, now: float, *, has_content: bool) -> None:
        """Events came, with content or without."""
        if self.started_at is None:
            self.started_at = now
        if has_content:
            self.last_at = now
            if self.first_at is None:
                self.first_at = now

    def is_over(self, now: float) -> bool:
        """The request's whole time is."""
        return now >= self.begun_at + self._config.request_timeout_s

    def is_load_due(self, now: float) -> bool:
        """The attempt has waited for its model as long as it may."""
        return self.started_at is None and now >= self.asked_at + self._config.load_wait_s

    def shortest_limit_s(self, *, is_stream: bool) -> float:
        """The longest that whoever watches may sleep without looking: a phase that begins meanwhile (admission, the
        first text) cannot run out earlier, so that nobody need wake him when it begins."""
        config = self._config
        limits_s = [config.load_wait_s]
        if is_stream:
            limits_s += [config.header_hold_s, config.keep_alive_s]
            limits_s += [s for s in (config.first_token_timeout_s, config.idle_timeout_s) if s is not None]
        return max(_MIN_SLEEP_S, min(limits_s))

    def next_alarm(self, writer: StreamWriter | None) -> float:
        """The earliest moment at which there is something to do."""
        config = self._config
        alarm = self.begun_at + config.request_timeout_s
        if self.admitted_at is None:
            return alarm
        if self.started_at is None:
            asked_at = self.asked_state_at
            alarm = min(alarm, self.asked_at + config.load_wait_s if asked_at is None else asked_at + 1.0)
        if writer is not None:
            alarm = min(alarm, self.token_deadline())
            if writer.started:
                alarm = min(alarm, writer.wrote_at + config.keep_alive_s)
            else:
                alarm = min(alarm, self.admitted_at + config.header_hold_s)
        return alarm

    def token_deadline(self) -> float:
        """When the next token is overdue. For streams only: otherwise a backend may hold events back."""
        config = self._config
        if self.first_at is None:
            if self.admitted_at is None or config.first_token_timeout_s is None:
                return math.inf
            return self.asked_at + config.first_token_timeout_s
        return math.inf if config.idle_timeout_s is None else self.last_at + config.idle_timeout_s

    def token_limit(self) -> tuple[str, float]:
        """What `token_deadline` is about, and how long it may take."""
        config = self._config
        limit_s = config.first_token_timeout_s if self.first_at is None else config.idle_timeout_s
        return "first token" if self.first_at is None else "next token", limit_s or 0.0
