"""Values of the contract as plain JSON for `--json`: names as in the proto, whole numbers as numbers.

protobuf's own JSON form writes 64-bit integers as texts and leaves out what is zero; scripts want neither.
"""

from __future__ import annotations

import base64
from dataclasses import is_dataclass

from fedmap.process.command_line import JsonValue


def message_json(message: object) -> dict[str, JsonValue]:
    """Every field of the message; an optional one that is absent is null."""
    return {name: _value(held) for name, held in vars(message).items()}


def _value(held: object) -> JsonValue:
    if is_dataclass(held):
        return message_json(held)
    if isinstance(held, bytes):
        return base64.b64encode(held).decode("ascii")
    if isinstance(held, tuple):
        return [_value(one) for one in held]
    if held is None or isinstance(held, bool | int | float | str):
        return held
    raise TypeError(f"no JSON form for a field of type {type(held).__name__}")
