"""Objects of which one member says what else they hold: the parts of a message, the formats of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from openai_compat.schemas.fields import Kind, OneOf, Record, Schema
from openai_compat.schemas.problems import INVALID, Loc, Problems


class Tagged(Kind):
    """An object in the one of `forms` that its member `tag` names. Gives it as it came."""

    def __init__(self, tag: str, forms: Mapping[str, Record]) -> None:
        self._tag = tag
        self._forms = forms
        self._words = OneOf(*forms)
        self._tagged = Record({tag: self._words}, required=(tag,))

    @override
    def check(self, value: Any, loc: Loc, problems: Problems) -> Any:
        if self._tagged.check(value, loc, problems) is INVALID:
            return INVALID
        return self._forms[value[self._tag]].check(value, loc, problems)

    @property
    @override
    def schema(self) -> Schema:
        """All forms in one object: a `oneOf` of nine reads worse, and generators make nine classes of it."""
        properties: Schema = {self._tag: self._words.schema}
        for form in self._forms.values():
            properties.update(form.schema["properties"])
        return {"type": "object", "required": [self._tag], "properties": properties}
