"""Whether two answers say the same, and if not, why. The reasons are names, each with one sentence.

edited               the receipt is not as it was made
engine, engine_version, machine, model_file, model_revision, provider_model, system_fingerprint, context_length
                     something else answered
sampling, prompt     something else was asked
unseeded             tokens were drawn, and nobody knows with which seed
not_exact            the engine usually repeats itself, and does not promise it
not_deterministic    nobody says that it does
no_receipt           the server does not say how it made the second answer
unexplained          none of these: the engine promises the same text
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from openai_compat.replay.said import Said
from openai_compat.replay.saved import Receipt, Saved

UNEXPLAINED: Final = "unexplained"
_AROUND: Final = 24
"""Characters shown on each side of the first difference."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`difference`: where the answers part, as far as both are at hand. `notes`: what differs and is no reason."""

    is_same: bool
    reasons: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    difference: str | None = None

    @property
    def is_explained(self) -> bool:
        return all(name != UNEXPLAINED for name, _ in self.reasons)


@dataclass(slots=True)
class _Causes:
    found: list[tuple[str, str]] = field(default_factory=list)

    def compare(self, name: str, what: str, before: Any, after: Any) -> None:
        """Where both are known."""
        if before is not None and after is not None and before != after:
            self.found.append((name, f"{what} was {_shown(before)} and is {_shown(after)}"))


def judge(saved: Saved, now: Receipt | None, said: Sequence[Said]) -> Verdict:
    """`now` and `said`: the receipt of the second answer, where there is one, and what that answer says."""
    then = saved.receipt
    before = [output.digests for output in then.output]
    after = [one.digests for one in said]
    causes = _causes(saved, now)
    if before == after:
        return Verdict(is_same=True, notes=tuple(causes + _endings(then, said)))
    reasons = causes + _promises(then, now)
    if not reasons:
        reasons = [(UNEXPLAINED, "the engine promises the same text, and nothing that it told has changed")]
    return Verdict(
        is_same=False,
        reasons=tuple(reasons),
        notes=tuple(_endings(then, said)),
        difference=_difference(saved, before, said),
    )


def _causes(saved: Saved, now: Receipt | None) -> list[tuple[str, str]]:
    then, causes = saved.receipt, _Causes()
    if saved.is_edited:
        causes.found.append(("edited", "the receipt is not as it was made: its sha256 is another one"))
    if now is None:
        causes.found.append(("no_receipt", "the server gave no receipt with its answer"))
        return causes.found
    causes.compare("engine", "the engine", then.engine.name, now.engine.name)
    causes.compare("engine_version", "its version", then.engine.version, now.engine.version)
    causes.compare("machine", "the machine", then.engine.machine, now.engine.machine)
    causes.compare("model_file", "the SHA-256 of the weights", then.model.sha256, now.model.sha256)
    causes.compare("model_revision", "the revision of the weights", then.model.revision, now.model.revision)
    causes.compare(
        "provider_model", "the provider's model", then.model.provider_model, now.model.provider_model
    )
    causes.compare(
        "system_fingerprint",
        "the provider's fingerprint",
        then.model.system_fingerprint,
        now.model.system_fingerprint,
    )
    causes.compare("context_length", "the context", then.model.context_length, now.model.context_length)
    _compare_sampling(causes, then.sampling or {}, now.sampling or {})
    if then.prompt_sha256 is not None and now.prompt_sha256 is not None:
        if then.prompt_sha256 != now.prompt_sha256:
            says = "the template made other tokens of the same request (some write the date into it)"
            causes.found.append(("prompt", says))
    else:
        before, after = then.usage.prompt_tokens, now.usage.prompt_tokens
        causes.compare("prompt", "the number of the prompt's tokens", before, after)
    return causes.found


def _compare_sampling(causes: _Causes, then: dict[str, Any], now: dict[str, Any]) -> None:
    for name in then.keys() & now.keys():
        # Whole numbers may have lost their point on the way.
        if then[name] != now[name]:
            says = f"{name} was {_shown(then[name])} and is {_shown(now[name])}"
            causes.found.append(("sampling", says))


def _endings(then: Receipt, said: Sequence[Said]) -> list[tuple[str, str]]:
    """Another end is a consequence, never the cause."""
    return [
        ("finish_reason", f"choice {output.index} ended with {output.finish_reason}, now {one.finish_reason}")
        for output, one in zip(then.output, said, strict=False)
        if output.finish_reason != one.finish_reason and one.vector is None
    ]


def _promises(then: Receipt, now: Receipt | None) -> list[tuple[str, str]]:
    """What was never to be expected."""
    found: list[tuple[str, str]] = []
    sampling = then.sampling
    if sampling is not None and sampling.get("seed") is None and sampling.get("temperature") != 0:
        found.append(("unseeded", "the tokens were drawn, and the receipt has no seed"))
    for receipt in (then, now):
        if receipt is not None and receipt.repeats != "exact":
            name = "not_exact" if receipt.repeats == "likely" else "not_deterministic"
            reason = (name, receipt.why_not or "the engine does not promise the same answer")
            if reason not in found:
                found.append(reason)
    return found


def _difference(saved: Saved, before: list[tuple[str | None, ...]], said: Sequence[Said]) -> str | None:
    if len(before) != len(said):
        return f"there were {len(before)} choices, now there are {len(said)}"
    index = next(i for i, one in enumerate(said) if one.digests != before[i])
    if saved.said is None:
        return f"choice {index} differs; the file has no text to compare it with"
    if [one.digests for one in saved.said] != before:
        return f"choice {index} differs; the text in the file is not the one that the receipt is of"
    return f"choice {index} {first_difference(saved.said[index], said[index])}"


def first_difference(before: Said, after: Said) -> str:
    """In words, with what stands around it."""
    if before.vector is not None and after.vector is not None:
        return _vector_difference(before.vector, after.vector)
    if before.reasoning != after.reasoning:
        return "thought otherwise: " + _text_difference(before.reasoning, after.reasoning)
    if before.calls != after.calls:
        return f"called {_shown(before.calls)}, now {_shown(after.calls)}"
    return _text_difference(before.text, after.text)


def _text_difference(before: str, after: str) -> str:
    shorter = min(len(before), len(after))
    at = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    start = max(0, at - _AROUND)
    old, new = before[start : at + _AROUND], after[start : at + _AROUND]
    return f"differs at character {at}: {_shown(old)} became {_shown(new)}"


def _vector_difference(before: bytes, after: bytes) -> str:
    if len(before) != len(after):
        return f"had {len(before) // 4} numbers and has {len(after) // 4}"
    numbers = [struct.unpack(f"<{len(one) // 4}f", one) for one in (before, after)]
    return f"differs by {max(abs(a - b) for a, b in zip(*numbers, strict=True)):.3g} at most"


def _shown(value: Any) -> str:
    """Without anything that a terminal would take for more than text."""
    return json.dumps(value, ensure_ascii=True)[:400]
