"""The agent's side of the wire, over real mutual TLS on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import (
    ConflictError,
    IntegrityError,
    NotAllowedError,
    StaleError,
    StorageError,
    UnreachableError,
)
from fedmap.files.digests import sha256_hex
from fedmap.transport.channel_options import CHUNK
from fedmap.transport.client import Route
from fedmap_site.link.connection import Connection
from tests.site_agent.federation_double import AggregatorDouble, Authority

PRIOR = os.urandom(3 * CHUNK + 17)
DIGEST = sha256_hex(PRIOR)
INSTANCE = values.AgentInstance("one", 1)


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        double.priors[DIGEST] = PRIOR
        yield double


@pytest.fixture
def connection(aggregator: AggregatorDouble) -> Iterator[Connection]:
    with aggregator.connection() as made:
        yield made


def answer_with(tensors: bytes) -> values.Answer:
    return values.Answer(
        study="s",
        task_id="round-1",
        site="a",
        tensors_digest=sha256_hex(tensors),
        tensors_size=len(tensors),
        fit=values.FitAnswer(epochs=1),
    )


def test_hello_tells_protocol_tier_and_the_aggregators_clock(connection: Connection) -> None:
    greeting = connection.hello("1.0")
    assert (greeting.protocol, greeting.tier) == (1, 1)
    assert greeting.time_unix_ms > 0


def test_an_answer_of_several_chunks_arrives_whole_and_gives_a_receipt(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    path = tmp_path / "tensors"
    path.write_bytes(PRIOR)
    answer = answer_with(PRIOR)
    receipt = connection.submit(wire.write(answer), path)
    assert receipt.answer_digest == sha256_hex(wire.write(answer))
    assert aggregator.received == [(answer, PRIOR)]


def test_an_answer_without_tensors_is_one_message(
    aggregator: AggregatorDouble, connection: Connection
) -> None:
    answer = values.Answer("s", "round-1", failure=values.FailureAnswer("data", "no"))
    connection.submit(wire.write(answer), None)
    assert aggregator.received == [(answer, b"")]


def test_tensors_that_cannot_be_read_are_a_storage_error_not_the_aggregators_fault(
    connection: Connection, tmp_path: Path
) -> None:
    with pytest.raises(StorageError):
        connection.submit(wire.write(answer_with(PRIOR)), tmp_path / "gone")


def test_a_prior_arrives_as_a_checked_file(connection: Connection, tmp_path: Path) -> None:
    path = connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    assert path.read_bytes() == PRIOR
    assert list(tmp_path.iterdir()) == [path]


def test_a_prior_that_is_here_already_is_not_fetched_again(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    assert aggregator.offsets == [0]


def test_a_prior_damaged_on_disk_is_fetched_again(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    path = connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    path.write_bytes(PRIOR[:-1])
    assert connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path).read_bytes() == PRIOR
    assert aggregator.offsets == [0, 0]


def test_a_cut_download_goes_on_where_it_stopped(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    aggregator.cut_prior_after = 2
    with pytest.raises(UnreachableError):
        connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    aggregator.cut_prior_after = None
    path = connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    assert path.read_bytes() == PRIOR
    assert aggregator.offsets == [0, 2 * CHUNK]


def test_a_changed_prior_is_refused_and_leaves_nothing_behind(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    aggregator.change_prior = lambda chunk: b"x" + chunk[1:]
    with pytest.raises(IntegrityError):
        connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_prior_that_never_ends_is_cut_off_at_the_announced_size(
    aggregator: AggregatorDouble, connection: Connection, tmp_path: Path
) -> None:
    aggregator.change_prior = lambda chunk: chunk + b"more"
    with pytest.raises(IntegrityError):
        connection.fetch_prior("s", DIGEST, len(PRIOR), tmp_path)


def test_a_digest_that_is_a_path_is_refused_before_any_file_is_named(
    connection: Connection, tmp_path: Path
) -> None:
    with pytest.raises(IntegrityError):
        connection.fetch_prior("s", "../../key", 1, tmp_path)


@pytest.mark.parametrize("error", [StaleError, ConflictError, NotAllowedError])
def test_a_refusal_keeps_its_class_message_and_hint(
    aggregator: AggregatorDouble, connection: Connection, error: type[StaleError]
) -> None:
    aggregator.refuse["NextTask"] = error("the reason", hint="the step")
    with pytest.raises(error) as raised:
        connection.next_task(INSTANCE, (), 1)
    assert (raised.value.message, raised.value.hint) == ("the reason", "the step")


def test_a_waiting_poll_ends_as_soon_as_it_is_interrupted(
    aggregator: AggregatorDouble, connection: Connection
) -> None:
    assert connection.next_task(INSTANCE, (), 60, lambda: bool(aggregator.polls)) is None


def test_tasks_in_hand_are_told_to_the_aggregator(
    aggregator: AggregatorDouble, connection: Connection
) -> None:
    aggregator.tasks = [values.Task("s", "round-1"), values.Task("s", "round-2")]
    held = values.TaskInHand("s", "round-1")
    task = connection.next_task(INSTANCE, [held], 1)
    assert task is not None
    assert task.id == "round-2"


def test_a_server_of_another_authority_is_not_spoken_to() -> None:
    with AggregatorDouble() as double:
        stranger = Authority()
        with (
            Connection(Route(double.address), stranger.credentials()) as connection,
            pytest.raises(UnreachableError),
        ):
            connection.hello("1.0")


def test_a_port_where_nobody_listens_is_unreachable() -> None:
    with (
        Connection(Route("localhost:1"), Authority().credentials()) as nowhere,
        pytest.raises(UnreachableError, match="refuse"),
    ):
        nowhere.hello("1.0")


def test_the_proxy_of_the_environment_is_ignored(
    aggregator: AggregatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://localhost:1")
    with aggregator.connection() as connection:
        assert connection.hello("1.0").tier == 1


def test_a_configured_proxy_is_really_used(aggregator: AggregatorDouble) -> None:
    route = Route(aggregator.address, "http://localhost:1")
    with (
        Connection(route, aggregator.authority.credentials()) as connection,
        pytest.raises(UnreachableError),
    ):
        connection.hello("1.0")


def test_keys_and_proxy_passwords_stay_out_of_printouts() -> None:
    credentials = Authority().credentials()
    assert "PRIVATE" not in repr(credentials)
    assert "secret" not in repr(Route("localhost:1", "http://user:secret@proxy:3128"))
