"""Messages of the contract as plain JSON for `--json`: names as in the proto, whole numbers as numbers.

protobuf's own JSON form writes 64-bit integers as texts and leaves out what is zero; scripts want neither.
Maps do not occur in the operator's messages and are not handled.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

from google.protobuf.message import Message

from fedmap.process.command_line import JsonValue


def message_json(message: Message) -> dict[str, JsonValue]:
    """Every field of the message; an optional one that is absent is null."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _value(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _value(value: object) -> JsonValue:
    if isinstance(value, Message):
        return message_json(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Iterable):
        return [_value(entry) for entry in value]
    raise TypeError(f"no JSON form for a field of type {type(value).__name__}")
