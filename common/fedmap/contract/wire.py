"""The only code that turns the contract's values into protobuf and back.

`values` has a frozen dataclass for each message; here they become bytes (always the same for equal values)
and come back. Bytes that are no such message are a `RejectedError`. What a newer version adds is passed over;
an enum's value that this version does not know reads as the one that stands for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fedmap.contract.v1 import bundles_pb2, drop_pb2, enrolment_pb2, federation_pb2, operator_pb2, values
from fedmap.errors import RejectedError

_FILES = (bundles_pb2, drop_pb2, enrolment_pb2, federation_pb2, operator_pb2)
_MOST_REPEATED = 100_000
"""Of one repeated field: more than any sound message has, and few enough to be read at once."""
V = TypeVar("V")


def write(value: object) -> bytes:
    """The message as bytes."""
    return _message_of(value).SerializeToString(deterministic=True)


def read(kind: type[V], data: bytes) -> V:
    """The value that the bytes hold."""
    try:
        message = _message_type(kind.__name__).FromString(data)
    except DecodeError:
        raise _unreadable(kind) from None
    return _value_of(kind, message)


def reader(kind: type[V]) -> Callable[[bytes], V]:
    """`read` of one kind, as gRPC wants it."""
    return lambda data: read(kind, data)


def write_json(value: object) -> str:
    """Protobuf's JSON form on one line, with the contract's own names."""
    return json_format.MessageToJson(_message_of(value), indent=None, preserving_proto_field_name=True)


def read_json(kind: type[V], text: str) -> V:
    """The value of protobuf's JSON form."""
    try:
        message = json_format.Parse(text, _message_type(kind.__name__)())
    except json_format.ParseError:
        raise _unreadable(kind) from None
    return _value_of(kind, message)


def fields_of(value: object) -> Iterator[tuple[str, str]]:
    """The path and text of everything that is said, however deep, in the contract's order."""
    yield from _said(_message_of(value), "")


@dataclass(frozen=True)
class Rpc:
    """One call of a service."""

    path: str
    request: type  # of `values`
    response: type
    takes_stream: bool
    gives_stream: bool


@lru_cache(maxsize=16)
def rpcs(service: str) -> Mapping[str, Rpc]:
    """The calls of a service, whose name may be the full one, by name, as the contract lists them."""
    short = service.rpartition(".")[2]
    described = next(
        found for file in _FILES if (found := file.DESCRIPTOR.services_by_name.get(short)) is not None
    )
    return {
        method.name: Rpc(
            f"/{described.full_name}/{method.name}",
            _value_type(method.input_type.name),
            _value_type(method.output_type.name),
            method.client_streaming,
            method.server_streaming,
        )
        for method in described.methods
    }


def rpc_of(request: type) -> Rpc:
    """The one call that takes this request."""
    return _rpcs_by_request()[request]


@lru_cache(maxsize=1)
def _rpcs_by_request() -> Mapping[type, Rpc]:
    return {rpc.request: rpc for service in service_names() for rpc in rpcs(service).values()}


def service_names() -> tuple[str, ...]:
    """All services of the contract, in full, sorted."""
    return tuple(
        sorted(one.full_name for file in _FILES for one in file.DESCRIPTOR.services_by_name.values())
    )


@lru_cache(maxsize=1)
def message_types() -> Mapping[str, type[Message]]:
    """The generated class of each message by its name."""
    return {
        name: GetMessageClass(described)
        for file in _FILES
        for name, described in file.DESCRIPTOR.message_types_by_name.items()
    }


@lru_cache(maxsize=64)
def enum_words(one: EnumDescriptor) -> Mapping[int, str]:
    """An enum's values in lower case, without the prefix that they all share."""
    prefix = one.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {number: value.name.removeprefix(prefix).lower() for number, value in one.values_by_number.items()}


def _message_of(value: object) -> Message:
    """The protobuf message that stands for a value."""
    kind = type(value)
    message = _message_type(kind.__name__)()
    for name, field in _described(kind.__name__):
        held = getattr(value, name)
        if held is None or (field.is_repeated and not held):
            continue
        if field.is_repeated:
            into = getattr(message, name)
            into.extend(_message_of(one) if field.message_type is not None else one for one in held)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(_message_of(held))
        elif field.enum_type is not None:
            setattr(message, name, _enum_number(field.enum_type, held))
        else:
            setattr(message, name, held)
    return message


def _value_of(kind: type[V], message: Message) -> V:
    """The value that a protobuf message stands for."""
    held: dict[str, object] = {}
    for name, field in _described(kind.__name__):
        if field.has_presence and not message.HasField(name):
            continue
        found = getattr(message, name)
        if field.is_repeated and len(found) > _MOST_REPEATED:
            raise _unreadable(kind)
        if field.message_type is not None:
            inner = _value_type(field.message_type.name)
            found = (
                tuple(_value_of(inner, one) for one in found)
                if field.is_repeated
                else _value_of(inner, found)
            )
        elif field.is_repeated:
            found = tuple(found)
        elif field.enum_type is not None:
            words = enum_words(field.enum_type)
            found = words.get(found, words[0])
        held[name] = found
    return kind(**held)


@lru_cache(maxsize=256)
def _described(name: str) -> tuple[tuple[str, Any], ...]:
    """The fields of a message by name; their types differ between builds of protobuf."""
    return tuple((field.name, field) for field in _message_type(name).DESCRIPTOR.fields)


def _message_type(name: str) -> type[Message]:
    return message_types()[name]


def _value_type(name: str) -> type:
    found: type = getattr(values, name)
    return found


def _enum_number(one: EnumDescriptor, word: str) -> int:
    return next(number for number, known in enum_words(one).items() if known == word)


def _said(message: Message, prefix: str) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        each = [(f"{path}[{place}]", one) for place, one in enumerate(value)] if field.is_repeated else None
        for name, one in each or [(path, value)]:
            if isinstance(one, Message):
                yield from _said(one, f"{name}.")
            else:
                yield name, str(one)


def _unreadable(kind: type) -> RejectedError:
    return RejectedError(
        f"the message cannot be read as {kind.__name__}",
        hint="Check that both sides run compatible versions; nothing of it was used.",
    )
