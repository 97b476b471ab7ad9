"""Values of the contract and their bytes: nothing is lost on the way, and nonsense is refused."""

from __future__ import annotations

import dataclasses
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.errors import RejectedError

KINDS = tuple(getattr(values, name) for name in sorted(wire.message_types()))
_LIMITS = {"INT64": (-(2**63), 2**63 - 1), "UINT64": (0, 2**64 - 1), "UINT32": (0, 2**32 - 1)}


def _held(field: typing.Any) -> st.SearchStrategy[object]:
    """What one field, or one item of a repeated one, may hold."""
    if field.message_type is not None:
        return values_of(getattr(values, field.message_type.name))
    if field.enum_type is not None:
        return st.sampled_from(sorted(wire.enum_words(field.enum_type).values()))
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=20)
    if field.type == field.TYPE_STRING:
        return st.text(max_size=20)
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_DOUBLE:
        return st.floats(allow_nan=False)
    kind = next(name for name in _LIMITS if getattr(field, f"TYPE_{name}") == field.type)
    return st.integers(*_LIMITS[kind])


def values_of(kind: type) -> st.SearchStrategy[object]:
    """Any value of a message, with at most one member of each oneof."""
    described = wire.message_types()[kind.__name__].DESCRIPTOR

    @st.composite
    def built(draw: st.DrawFn) -> object:
        held: dict[str, object] = {}
        chosen = {
            one.name: draw(st.sampled_from([None, *(field.name for field in one.fields)]))
            for one in described.oneofs
            if len(one.fields) > 1
        }
        for field in described.fields:
            union = field.containing_oneof
            if union is not None and union.name in chosen:
                if chosen[union.name] == field.name:
                    held[field.name] = draw(_held(field))
            elif field.is_repeated:
                held[field.name] = tuple(draw(st.lists(_held(field), max_size=3)))
            elif not field.has_presence or draw(st.booleans()):
                held[field.name] = draw(_held(field))
        return kind(**held)

    return built()


@given(value=st.sampled_from(KINDS).flatmap(values_of))
def test_every_value_comes_back_as_it_went(value: object) -> None:
    assert wire.read(type(value), wire.write(value)) == value
    assert wire.read_json(type(value), wire.write_json(value)) == value


@given(value=st.sampled_from(KINDS).flatmap(values_of))
def test_bytes_are_those_of_protobuf(value: object) -> None:
    message = wire.message_types()[type(value).__name__].FromString(wire.write(value))
    assert message.SerializeToString(deterministic=True) == wire.write(value)


@given(data=st.binary(max_size=60), kind=st.sampled_from(KINDS))
def test_any_bytes_are_a_value_or_refused(data: bytes, kind: type) -> None:
    try:
        value: object = wire.read(kind, data)
    except RejectedError:
        return
    assert isinstance(value, kind)


def test_bytes_that_are_no_message_are_refused_with_the_kind() -> None:
    with pytest.raises(RejectedError, match="Task"):
        wire.read(values.Task, b"\xff\xff")
    with pytest.raises(RejectedError, match="Task"):
        wire.read_json(values.Task, "{")


def test_a_message_of_endlessly_many_parts_is_refused() -> None:
    """Each would become a value of its own, in memory and time that the sender does not pay."""
    with pytest.raises(RejectedError):
        wire.read(values.NextTaskRequest, b"\x12\x00" * 200_000)


def test_numbers_of_numpy_are_numbers() -> None:
    value = values.FitAnswer(log_omega=np.float64(-0.5), epochs=int(np.int64(3)))
    assert wire.read(values.FitAnswer, wire.write(value)) == values.FitAnswer(log_omega=-0.5, epochs=3)


def test_an_enums_value_of_a_newer_version_reads_as_none_that_is_known() -> None:
    message = pb.Task(study="s")
    message.kind = typing.cast(pb.TaskKind.ValueType, 99)
    assert wire.read(values.Task, message.SerializeToString()).kind == "unspecified"


def test_what_was_not_said_is_none_and_what_was_said_as_zero_is_zero() -> None:
    said = wire.read(values.FitAnswer, pb.FitAnswer(loss=0.0).SerializeToString())
    assert said.loss == 0.0
    assert said.log_omega is None


def test_fields_are_told_by_their_path_in_the_contracts_order() -> None:
    score = values.Score("global", "auroc", 0.75)
    answer = values.Answer(study="s", evaluation=values.EvaluationAnswer(scores=(score,), test_rows=0))
    assert list(wire.fields_of(answer)) == [
        ("study", "s"),
        ("evaluation.scores[0].model", "global"),
        ("evaluation.scores[0].metric", "auroc"),
        ("evaluation.scores[0].value", "0.75"),
        ("evaluation.test_rows", "0"),
    ]


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        values.Task().study = "x"  # type: ignore[misc]


def test_the_calls_of_a_service_are_known_by_name() -> None:
    calls = wire.rpcs("FederationService")
    assert calls["SubmitAnswer"].path == "/fedmap.v1.FederationService/SubmitAnswer"
    assert calls["SubmitAnswer"].takes_stream
    assert calls["FetchPrior"].gives_stream
    assert calls["NextTask"].response is values.NextTaskResponse
