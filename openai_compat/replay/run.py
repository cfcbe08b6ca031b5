"""The command."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from openai_compat.replay.ask import NotAnswered, ask, body_of
from openai_compat.replay.said import said_by
from openai_compat.replay.saved import Receipt, Unusable, read_file, receipt_of, request_in, saved_in
from openai_compat.replay.verdict import Verdict, judge

SAME, OTHER, UNUSABLE, NOT_ANSWERED, UNEXPLAINED = 0, 1, 2, 3, 4
"""Exit codes: the same text; another one, and why; the file cannot be replayed; the server did not answer; another one,
and nothing says why."""
_RESULTS: Final = {
    SAME: "same text",
    OTHER: "other text",
    UNUSABLE: "unusable",
    NOT_ANSWERED: "not answered",
    UNEXPLAINED: "other text",
}


def run(
    *,
    file: str,
    base_url: str,
    api_key: str | None = None,
    request_file: str | None = None,
    timeout_s: float = 600.0,
    as_json: bool = False,
) -> int:
    """The exit code."""
    try:
        saved = saved_in(read_file(file))
        request = saved.receipt.request
        if request_file is not None:
            request = request_in(read_file(request_file))
        if request is None:
            raise Unusable(
                "the receipt does not repeat its request, which was too long: give it with --request"
            )
        answer = ask(base_url, saved.receipt, body_of(saved.receipt, request), api_key, timeout_s)
        now = _receipt_in(answer)
        try:
            said = said_by(answer)
        except (ValueError, AttributeError):
            raise NotAnswered("failed", "the server's answer makes no sense") from None
    except Unusable as error:
        return _tell(UNUSABLE, Verdict(is_same=False, reasons=(("unusable", str(error)),)), as_json=as_json)
    except NotAnswered as error:
        return _tell(
            NOT_ANSWERED, Verdict(is_same=False, reasons=((error.name, str(error)),)), as_json=as_json
        )
    verdict = judge(saved, now, said)
    code = SAME if verdict.is_same else OTHER if verdict.is_explained else UNEXPLAINED
    return _tell(code, verdict, as_json=as_json, receipt=saved.receipt)


def _receipt_in(answer: Any) -> Receipt | None:
    """Of the second answer; what makes no sense counts as none."""
    try:
        return receipt_of(answer.get("llm_receipt"))[0]
    except (Unusable, AttributeError):
        return None


def _tell(code: int, verdict: Verdict, *, as_json: bool, receipt: Receipt | None = None) -> int:
    if as_json:
        document = {
            "result": _RESULTS[code],
            "exit_code": code,
            "reasons": [{"name": name, "says": says} for name, says in verdict.reasons],
            "notes": [{"name": name, "says": says} for name, says in verdict.notes],
            "difference": verdict.difference,
        }
        print(json.dumps(document, indent=1))
        return code
    lines = [_RESULTS[code] + (f", {_who(receipt)}" if receipt is not None else "")]
    lines += [verdict.difference] if verdict.difference is not None else []
    lines += [f"reason: {name}: {says}" for name, says in verdict.reasons]
    lines += [f"note: {name}: {says}" for name, says in verdict.notes]
    out = sys.stdout if code in (SAME, OTHER, UNEXPLAINED) else sys.stderr
    print("\n".join(line.encode("ascii", "backslashreplace").decode() for line in lines), file=out)
    return code


def _who(receipt: Receipt) -> str:
    num = len(receipt.output)
    what = "vector" if receipt.route == "/v1/embeddings" else "choice"
    return f"{num} {what}{'' if num == 1 else 's'} of {json.dumps(receipt.model.id)} on {json.dumps(receipt.backend)}"
