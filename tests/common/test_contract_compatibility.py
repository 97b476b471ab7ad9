"""Today's contract can be spoken with an agent of 0.1.0: what is on the wire keeps its number, type and
place.

contract-0.1.0.binpb is the FileDescriptorSet of proto/ as release 0.1.0 had it (protoc
--descriptor_set_out); it is never made again. That the meaning is the same too is what `make upgrade-test`
shows with real processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorSet

from fedmap.contract.v1 import bundles_pb2, drop_pb2, enrolment_pb2, federation_pb2, operator_pb2

RECORDED = Path(__file__).with_name("contract-0.1.0.binpb")
MODULES = (bundles_pb2, drop_pb2, enrolment_pb2, federation_pb2, operator_pb2)


def recorded() -> FileDescriptorSet:
    return FileDescriptorSet.FromString(RECORDED.read_bytes())


def current() -> FileDescriptorSet:
    found = FileDescriptorSet()
    for module in MODULES:
        module.DESCRIPTOR.CopyToProto(found.file.add())
    return found


def messages(files: FileDescriptorSet) -> dict[str, DescriptorProto]:
    def inner(prefix: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        name = f"{prefix}.{message.name}"
        yield name, message
        for nested in message.nested_type:
            yield from inner(name, nested)

    return dict(pair for file in files.file for one in file.message_type for pair in inner(file.package, one))


def enums(files: FileDescriptorSet) -> dict[str, EnumDescriptorProto]:
    return {f"{file.package}.{one.name}": one for file in files.file for one in file.enum_type}


def calls(files: FileDescriptorSet) -> dict[str, tuple[str, str, bool, bool]]:
    return {
        f"/{file.package}.{service.name}/{one.name}": (
            one.input_type,
            one.output_type,
            one.client_streaming,
            one.server_streaming,
        )
        for file in files.file
        for service in file.service
        for one in service.method
    }


def breaches(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """What an agent of the old contract would stumble over; empty where nothing is."""
    found = [f"the call {name} is gone or has changed" for name in calls(old).items() - calls(new).items()]
    for name, message in messages(old).items():
        after = messages(new).get(name)
        if after is None:
            found.append(f"the message {name} is gone")
            continue
        fields = {field.number: field for field in after.field}
        reserved = {number for part in after.reserved_range for number in range(part.start, part.end)}
        for field in message.field:
            kept = fields.get(field.number)
            if kept is None:
                if field.number not in reserved:
                    found.append(f"{name}.{field.name} is gone and its number is not reserved")
                continue
            group = [after.oneof_decl[kept.oneof_index].name] if kept.HasField("oneof_index") else []
            before = [message.oneof_decl[field.oneof_index].name] if field.HasField("oneof_index") else []
            same = ("name", "type", "label", "type_name", "proto3_optional")
            changed = [one for one in same if getattr(kept, one) != getattr(field, one)]
            found += [f"{name}.{field.name} has another {one}" for one in changed]
            found += [f"{name}.{field.name} is in another oneof"] * (group != before)
    for name, enum in enums(old).items():
        values = {value.number: value.name for value in enums(new)[name].value} if name in enums(new) else {}
        found += [
            f"{name}: {v.name} is gone or renamed" for v in enum.value if values.get(v.number) != v.name
        ]
    return found


def test_an_agent_of_0_1_0_finds_every_call_and_field_as_it_knows_them() -> None:
    assert breaches(recorded(), current()) == []


def test_the_recorded_contract_is_that_of_a_whole_release() -> None:
    assert len(calls(recorded())) >= 25
    assert "fedmap.v1.HelloRequest" in messages(recorded())
    assert calls(recorded()).keys() < calls(current()).keys()


def changed(what: str) -> FileDescriptorSet:
    new = current()
    (federation,) = (file for file in new.file if file.name.endswith("federation.proto"))
    (hello,) = (one for one in federation.message_type if one.name == "HelloRequest")
    match what:
        case "retyped":
            hello.field[0].type = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
        case "renumbered":
            hello.field[0].number = 99
        case "removed":
            del hello.field[0]
        case "repeated":
            hello.field[0].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        case "call":
            del federation.service[0].method[0]
        case "enum":
            federation.enum_type[0].value[1].number = 77
    return new


@pytest.mark.parametrize("what", ["retyped", "renumbered", "removed", "repeated", "call", "enum"])
def test_a_contract_that_breaks_the_wire_is_noticed(what: str) -> None:
    assert breaches(recorded(), changed(what))


def test_a_removed_field_whose_number_is_reserved_is_no_breach() -> None:
    new = current()
    (federation,) = (file for file in new.file if file.name.endswith("federation.proto"))
    (hello,) = (one for one in federation.message_type if one.name == "HelloRequest")
    gone = hello.field[-1].number
    del hello.field[-1]
    hello.reserved_range.add(start=gone, end=gone + 1)
    assert breaches(recorded(), new) == []


def test_a_message_of_0_1_0_is_read_the_same_today() -> None:
    """Bytes that the recorded contract writes, parsed by today's code."""
    pool = descriptor_pool.DescriptorPool()
    for file in recorded().file:
        pool.Add(file)
    old = message_factory.GetMessageClass(pool.FindMessageTypeByName("fedmap.v1.HelloRequest"))
    written = old(oldest_protocol=1, newest_protocol=1, software_version="0.1.0").SerializeToString()
    read = federation_pb2.HelloRequest.FromString(written)
    assert (read.oldest_protocol, read.newest_protocol, read.software_version) == (1, 1, "0.1.0")
