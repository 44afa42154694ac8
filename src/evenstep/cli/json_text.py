"""Tell damaged JSON from files of another kind."""

from __future__ import annotations

import json

from evenstep.errors import InputError
from evenstep.planning import any_digits


def require_json(text: str, where: str) -> None:
    """Refuse text that is empty, or that looks like JSON but is not valid; the error calls it `where`."""
    if not text.strip():
        raise InputError(f"{where} is empty, which is not valid JSON; write it again with the command that made it")
    if text.lstrip()[0] not in "{[":
        return
    try:
        with any_digits():
            json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}), perhaps cut off; "
            "write it again with the command that made it"
        ) from None
    except RecursionError:
        return
