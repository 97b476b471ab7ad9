"""The server over real mutual TLS: who gets in, what bad callers are told, and that studies go on all
the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, repeat
from typing import TypeAlias

import grpc
import pytest

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import (
    ConflictError,
    FedmapError,
    IntegrityError,
    LimitError,
    NotAllowedError,
    NotFoundError,
    RejectedError,
    StaleError,
    StateError,
    StorageError,
    TokenError,
    UnreachableError,
)
from fedmap.files.digests import sha256_hex
from fedmap.transport.chunks import answer_part, tensors_part
from fedmap.transport.status import typed_error
from fedmap.trust.pki import CertificateAuthority, Identity, make_csr, new_key
from fedmap_aggregator.identity.initialise import pki_paths
from fedmap_aggregator.operator.status import FINAL
from fedmap_aggregator.store.layout import state_lock
from fedmap_aggregator.wiring import Aggregator
from tests.aggregator import small_study as made
from tests.aggregator.centre import scripted
from tests.aggregator.running import SECONDS, Client, Running, config_in, running

LIMITS = """
[limits]
stall_seconds = 0.5
upload_seconds = 20.0
slowest_kib_per_second = 0.0
calls_per_caller = 4
"""


@pytest.fixture(scope="module")
def centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("centre"), LIMITS) as made_centre:
        yield made_centre


@pytest.fixture(scope="module")
def pair(centre: Running) -> tuple[Client, Client]:
    """Two enrolled T1 sites."""
    return centre.site("north"), centre.site("south")


Begin: TypeAlias = Callable[..., made.Small]


@pytest.fixture
def begin(centre: Running, pair: tuple[Client, Client]) -> Iterator[Begin]:
    """Studies of some sites, or the pair, that end with the test, so that the next one's get its own."""
    names: list[str] = []

    def begun(name: str, *sites: Client, rounds: int = 1, start: bool = True) -> made.Small:
        names.append(name)
        return centre.study(*(sites or pair), name=name, rounds=rounds, start=start)

    yield begun
    for name in names:
        if centre.status(name).phase not in FINAL:
            centre.operator().control(name, "abort")


@contextmanager
def refused(kind: type[FedmapError], match: str = "") -> Iterator[None]:
    """The call fails with this error, which names a next step."""
    with pytest.raises(FedmapError) as caught:
        yield
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    assert match in error.message
    assert error.hint


def test_a_study_runs_to_its_end_over_the_network(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    study = begin("whole-run", rounds=2)
    asked = 0
    while centre.status("whole-run").phase != "complete":
        for site in pair:
            task = site.next_task(wait_seconds=1)
            if task is not None and task.study == "whole-run":
                site.submit(*scripted(study, task, site.name))
        asked += 1
        assert asked < 60
    status = centre.status("whole-run")
    assert [r.round for r in status.history] == [1, 2]
    assert any(pair[0].chunks(values.FetchPriorRequest("whole-run", status.prior_digest)))


def test_a_prior_is_fetched_from_any_offset(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    _open_round(centre, pair, begin("offsets"))
    task = pair[0].next_task(wait_seconds=30)
    assert task is not None

    def fetch(offset: int) -> bytes:
        return b"".join(pair[0].chunks(values.FetchPriorRequest("offsets", task.prior_digest, offset)))

    whole = fetch(0)
    assert len(whole) == task.prior_size
    assert fetch(100) == whole[100:]
    assert fetch(len(whole)) == b""
    with refused(StateError):
        fetch(len(whole) + 1)
    with refused(NotFoundError):
        list(pair[0].chunks(values.FetchPriorRequest("offsets", "../../etc/passwd")))


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x12\x00" * 200_000], ids=["no message", "endless"])
def test_a_request_that_cannot_be_read_is_refused_in_words(
    centre: Running, pair: tuple[Client, Client], data: bytes
) -> None:
    path = wire.rpcs("FederationService")["NextTask"].path
    call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = centre.channel(pair[0].credentials).unary_unary(path)
    with pytest.raises(grpc.RpcError) as caught:
        call(data, timeout=SECONDS)
    assert isinstance(typed_error(caught.value), RejectedError)


# Certificates and tokens


def test_a_wrong_token_is_refused(centre: Running) -> None:
    centre.invite("wrong-token")
    with refused(TokenError, "not one of this federation"):
        centre.enrol("wrong-token", "x" * 43, _csr("wrong-token"))


def test_a_token_works_once_also_when_two_use_it_at_the_same_moment(centre: Running) -> None:
    token = centre.invite("twice")
    told: list[type[FedmapError]] = []

    def enrol(_: int) -> bool:
        for _again in range(5):  # on a busy machine a call may run out of time: ask again, as an agent does
            try:
                centre.enrol("twice", token, _csr("twice"))
            except UnreachableError:
                continue
            except FedmapError as error:
                told.append(type(error))
                return False
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(enrol, range(4))) == [False, False, False, True]
    assert told == [TokenError] * 3
    with refused(TokenError, "has been used"):
        centre.enrol("twice", token, _csr("twice"))


def test_an_expired_token_is_refused(centre: Running) -> None:
    token = centre.invite("too-late")
    with centre.clock.ahead(days=3.1), refused(TokenError, "expired"):
        centre.enrol("too-late", token, _csr("too-late"))


def test_another_sites_token_is_refused_and_stays_good_for_its_own_site(centre: Running) -> None:
    token = centre.invite("owner")
    centre.invite("thief")
    with refused(TokenError, "another site"):
        centre.enrol("thief", token, _csr("thief"))
    centre.enrol("owner", token, _csr("owner"))


def test_a_request_with_a_foreign_name_is_rejected_and_uses_no_token_up(centre: Running) -> None:
    token = centre.invite("honest")
    with refused(RejectedError, "another name"):
        centre.enrol("honest", token, _csr("somebody-else"))
    with refused(RejectedError):
        centre.enrol("honest", token, b"no request at all")
    centre.enrol("honest", token, _csr("honest"))


def test_a_second_enrolment_revokes_the_first_certificate(centre: Running) -> None:
    first = centre.site("moved")
    first.hello()
    second = centre.site("moved")
    second.hello()
    with refused(NotAllowedError, "revoked"):
        first.hello()


def test_a_renewed_certificate_works_beside_the_old_one_and_only_for_the_same_name(centre: Running) -> None:
    site = centre.site("renewing")
    key = new_key()
    request = values.RenewRequest(make_csr(key, Identity("site", "renewing")))
    renewed = site.ask(request, values.RenewResponse)
    assert renewed.certificate_pem != site.credentials.certificate
    site.hello()
    with refused(RejectedError, "another name"):
        site.ask(values.RenewRequest(_csr("north")), values.RenewResponse)


def test_a_revoked_site_is_shut_out_from_its_next_call_on_the_same_connection(centre: Running) -> None:
    site = centre.site("leaver")
    site.hello()
    centre.operator().revoke("leaver", "test")
    with refused(NotAllowedError, "revoked"):
        site.hello()


def test_an_expired_certificate_does_not_connect(centre: Running) -> None:
    client = centre.client(centre.certified(Identity("site", "north"), days=-1))
    with refused(UnreachableError):
        client.hello()


def test_a_certificate_that_ends_while_connected_is_refused_at_the_next_call(centre: Running) -> None:
    site = centre.site("ending")
    site.hello()
    with centre.clock.ahead(days=91), refused(NotAllowedError, "ended"):
        site.hello()


def test_a_certificate_of_a_foreign_authority_does_not_connect(centre: Running) -> None:
    foreign, _ = CertificateAuthority.create("foreign", 10, datetime.now(UTC))
    with refused(UnreachableError):
        centre.client(centre.certified(Identity("site", "north"), foreign)).hello()


def test_a_client_without_a_certificate_does_not_connect(centre: Running) -> None:
    channel = grpc.secure_channel(
        f"127.0.0.1:{centre.aggregator.port}",
        grpc.ssl_channel_credentials(centre.authority.certificate_pem),
        options=[("grpc.use_local_subchannel_pool", 1)],
    )
    check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
    with channel, pytest.raises(grpc.RpcError) as caught:
        check(b"", timeout=SECONDS)
    assert isinstance(typed_error(caught.value), UnreachableError)


def test_a_certificate_for_a_site_that_was_never_invited_is_refused(centre: Running) -> None:
    with refused(NotAllowedError, "not invited"):
        centre.client(centre.certified(Identity("site", "ghost"))).hello()


# The table of who may call what


def test_a_t3_site_may_greet_and_renew_but_not_call_what_is_for_t1(centre: Running) -> None:
    clinic = centre.site("clinic", tier=3)
    assert clinic.hello().tier == 3
    calls: list[Callable[[], object]] = [
        lambda: clinic.ask(values.ListStudiesRequest(), values.ListStudiesResponse),
        lambda: clinic.next_task(),
        lambda: clinic.approve("x"),
        lambda: list(clinic.chunks(values.FetchPriorRequest("x"))),
        lambda: clinic.submit(values.Answer("x")),
        lambda: clinic.ask(values.HeartbeatRequest(), values.HeartbeatResponse),
    ]
    for call in calls:
        with refused(NotAllowedError, "T3 site"):
            call()


def test_the_joining_certificate_opens_enrol_and_nothing_else(centre: Running) -> None:
    joining = centre.joining()
    for call in (joining.hello, joining.next_task):
        with refused(NotAllowedError, "role joining"):
            call()
    with refused(NotAllowedError, "role joining"):
        joining.ask(values.ListSitesRequest(), values.ListSitesResponse)


def test_a_site_may_not_do_what_the_operator_does(pair: tuple[Client, Client]) -> None:
    with refused(NotAllowedError, "role site"):
        pair[0].ask(values.InviteRequest("friend", 1), values.InviteResponse)


def test_an_operator_may_not_do_what_a_site_does(centre: Running) -> None:
    with refused(NotAllowedError, "role operator"):
        centre.operator().ask(values.HelloRequest(), values.HelloResponse)


def test_health_is_open_to_every_certificate_and_watch_to_none(centre: Running) -> None:
    joining = centre.joining()
    assert joining.is_serving(SECONDS)
    assert centre.operator().is_serving(SECONDS)
    watch: grpc.UnaryStreamMultiCallable[bytes, bytes] = centre.channel(joining.credentials).unary_stream(
        "/grpc.health.v1.Health/Watch"
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(watch(b"", timeout=SECONDS))
    error = typed_error(caught.value)
    assert isinstance(error, NotAllowedError)
    assert "not offered" in error.message


def test_reflection_is_off_unless_it_is_configured(centre: Running) -> None:
    call: grpc.StreamStreamMultiCallable[bytes, bytes] = centre.channel(
        centre.joining().credentials
    ).stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([b""]), timeout=SECONDS))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# Studies and answers


def test_a_study_a_site_is_not_invited_to_does_not_exist_for_it(centre: Running, begin: Begin) -> None:
    begin("closed-circle", start=False)
    outsider = centre.site("outsider")
    assert not outsider.ask(values.ListStudiesRequest(), values.ListStudiesResponse).studies
    for name in ("closed-circle", "no-such-study"):
        with refused(NotFoundError):
            outsider.approve(name)
        with refused(NotFoundError):
            outsider.submit(values.Answer(study=name, site="outsider", task_id="statistics", attempt=1))


def test_terms_that_were_not_read_cannot_be_approved(pair: tuple[Client, Client], begin: Begin) -> None:
    begin("unread", start=False)
    with refused(ConflictError, "digest"):
        pair[0].approve("unread", "0" * 64)


def test_a_site_that_did_not_approve_takes_no_part(centre: Running, begin: Begin) -> None:
    sites = [centre.site(name) for name in ("first", "second", "third")]
    study = begin("two-of-three", *sites, start=False)
    for site in sites[:2]:
        site.approve("two-of-three", study.terms.digest)
    centre.operator().control("two-of-three", "start")
    assert sites[2].next_task() is None
    task = sites[0].next_task()
    assert task is not None
    answer, tensors = scripted(study, task, "third")
    with refused(StateError, "takes no part"):
        sites[2].submit(answer, tensors)
    with refused(StateError):
        sites[2].approve("two-of-three", study.terms.digest)


def test_the_same_answer_twice_gets_the_first_receipt_also_after_the_task_is_closed(
    pair: tuple[Client, Client], begin: Begin
) -> None:
    study, (north, south) = begin("repeats"), pair
    answer, tensors = north.ready(study)
    first = north.submit(answer, tensors)
    assert north.submit(answer, tensors) == first
    south.work(study)
    assert north.submit(answer, tensors) == first
    assert north.submit(answer) == first, "nothing needs to be sent again"
    other = replace(answer, statistics=values.StatisticsAnswer(41))
    with refused(ConflictError, "another answer"):
        north.submit(other, tensors)


def test_an_answer_to_a_closed_task_is_stale(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    _open_round(centre, pair, begin("moves-on"))
    told = []
    for site in pair:
        late = values.Answer("moves-on", "initialise", 1, site.name, failure=values.FailureAnswer("data"))
        with pytest.raises(FedmapError) as caught:
            site.submit(late)
        told.append(type(caught.value))
    assert set(told) == {StaleError, ConflictError}, "the drawn site's own answer stands"


def test_a_rejected_answer_is_told_why_and_the_round_goes_on_without_it(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    third = centre.site("poisoner")
    sites = (*pair, third)
    study = begin("poisoned", *sites)
    for site in sites:
        site.work(study)
    _initialise(centre, study, sites)
    answer, tensors = third.ready(study)
    bad = made.poisoned(tensors, next(iter(study.model.network.spec.names)), float("nan"))
    answer = replace(answer, tensors_digest=sha256_hex(bad))
    with refused(RejectedError, "finite"):
        third.submit(answer, bad)
    with refused(RejectedError, "finite"):
        third.submit(answer, bad)
    for site in pair:
        site.work(study)
    _until(lambda: centre.status("poisoned").phase != "rounds")
    status = centre.status("poisoned")
    assert [(r.site, r.task_id, r.code) for r in status.refusals] == [("poisoner", "round-1", "rejected")]
    assert status.history[0].answered == 2
    quarantine = centre.config.server.state / "blobs" / "quarantine"
    assert (quarantine / answer.tensors_digest).read_bytes() == bad


def test_a_truncated_or_corrupted_upload_is_refused_and_can_be_sent_again(
    pair: tuple[Client, Client], begin: Begin
) -> None:
    study, north = begin("damaged"), pair[0]
    answer, tensors = north.ready(study)
    with refused(IntegrityError, "bytes arrived"):
        north.submit(answer, tensors[:-1])
    with refused(IntegrityError, "more bytes"):
        north.submit(answer, tensors + b"x")
    with refused(IntegrityError, "digest"):
        north.submit(answer, b"\0" + tensors[1:])
    north.submit(answer, tensors)


def test_an_upload_without_end_is_cut_off_at_the_announced_size(
    pair: tuple[Client, Client], begin: Begin
) -> None:
    study, north = begin("endless"), pair[0]
    answer, _ = north.ready(study)

    parts = chain([answer_part(wire.write(answer))], repeat(tensors_part(b"x" * 1000)))
    with refused(IntegrityError, "more bytes"):
        north.upload(values.SubmitAnswerRequest, parts, values.SubmitAnswerResponse)


def test_an_oversized_answer_is_refused_by_its_header_before_a_byte_is_sent(
    pair: tuple[Client, Client], begin: Begin
) -> None:
    study, north = begin("oversized"), pair[0]
    answer, _ = north.ready(study)
    with refused(RejectedError, "larger"):
        north.submit(replace(answer, tensors_size=1 << 40))


def test_a_message_larger_than_the_contract_allows_is_refused(pair: tuple[Client, Client]) -> None:
    failure = values.FailureAnswer(reason="x" * (3 << 20))
    with refused(LimitError):
        pair[0].submit(values.Answer("x", site="north", failure=failure))


def test_an_upload_that_stalls_is_cut_off(pair: tuple[Client, Client], begin: Begin) -> None:
    study, north = begin("stalled"), pair[0]
    answer, tensors = north.ready(study)
    never = threading.Event()

    def parts() -> Iterator[bytes]:
        yield answer_part(wire.write(answer))
        yield tensors_part(tensors[:10])
        never.wait(SECONDS)

    try:
        with refused(LimitError, "nothing arrived"):
            north.upload(values.SubmitAnswerRequest, parts(), values.SubmitAnswerResponse)
    finally:
        never.set()
    north.submit(answer, tensors)
    _until(lambda: not [t for t in threading.enumerate() if t.name == "upload"])


def test_an_upload_that_does_not_begin_with_the_answer_is_refused(pair: tuple[Client, Client]) -> None:
    with refused(RejectedError, "begins with the answer"):
        parts = iter([tensors_part(b"x")])
        pair[0].upload(values.SubmitAnswerRequest, parts, values.SubmitAnswerResponse)


def test_an_answer_in_another_sites_name_is_refused(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    study, (north, _) = begin("forged"), pair
    answer, tensors = scripted(study, north.asked(study), "south")
    with refused(RejectedError, "another site"):
        north.submit(answer, tensors)
    members = {m.site: m.answer for m in centre.status("forged").members}
    assert members == {"north": "rejected", "south": "waiting"}


def test_two_agents_with_one_identity_are_noticed(centre: Running) -> None:
    site = centre.site("doubled")
    site.next_task(instance="machine-one")
    with refused(ConflictError, "another agent uses this identity"):
        site.next_task(instance="machine-two")
    with refused(ConflictError, "another agent uses this identity"):
        beat = values.HeartbeatRequest(values.AgentInstance("machine-two", 1))
        site.ask(beat, values.HeartbeatResponse)
    site.next_task(instance="machine-one", start=2)
    with refused(ConflictError, "later start"):
        site.next_task(instance="machine-one", start=1)


def test_a_heartbeat_tells_whether_the_task_is_still_open(
    centre: Running, pair: tuple[Client, Client], begin: Begin
) -> None:
    begin("beating")
    who = values.AgentInstance("north", 1)
    beat = values.HeartbeatRequest(who, "beating", "statistics", "training", 0.5)
    assert pair[0].ask(beat, values.HeartbeatResponse).task_open
    member = {m.site: m for m in centre.status("beating").members}["north"]
    assert (member.stage, member.progress) == ("training", 0.5)
    centre.operator().control("beating", "abort")
    assert not pair[0].ask(beat, values.HeartbeatResponse).task_open


def test_one_caller_cannot_hold_more_than_its_share_of_calls(centre: Running) -> None:
    site = centre.site("greedy")
    request = values.NextTaskRequest(values.AgentInstance("greedy", 1), (), 60)
    refusals: list[FedmapError] = []

    def hold(_: int) -> None:
        try:
            site.ask_unless(lambda: bool(refusals), request, values.NextTaskResponse, SECONDS)
        except FedmapError as error:
            refusals.append(error)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(hold, range(5)))
    assert [type(error) for error in refusals] == [LimitError]
    _until(lambda: _greets(site))


def test_calls_that_never_send_their_message_hold_up_nobody_and_are_cut_off(centre: Running) -> None:
    silent, never = centre.joining(), threading.Event()
    method: grpc.StreamUnaryMultiCallable[bytes, bytes] = centre.channel(silent.credentials).stream_unary(
        "/fedmap.v1.EnrolmentService/Enrol"
    )

    def nothing() -> Iterator[bytes]:
        never.wait(SECONDS)
        yield b""

    calls = [method.future(nothing(), timeout=SECONDS) for _ in range(60)]
    try:
        assert centre.operator().sites()
        codes = {call.code() for call in calls}
        assert codes <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED}
    finally:
        never.set()
    token = centre.invite("patient-one")
    _until(lambda: _enrols(centre, "patient-one", token))


def test_an_unexpected_failure_tells_the_caller_nothing_of_its_cause(
    pair: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("patient 12345")

    monkeypatch.setattr("fedmap_aggregator.rpc.handlers.federation.agreed_protocol", fail)
    with pytest.raises(FedmapError) as caught:
        pair[0].hello()
    assert type(caught.value) is FedmapError
    assert "12345" not in f"{caught.value} {caught.value.__cause__}"


def test_a_disk_that_is_full_asks_the_site_to_try_again_later(
    pair: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch, begin: Begin
) -> None:
    study, north = begin("full-disk"), pair[0]
    answer, tensors = north.ready(study)

    def full(*_: object) -> None:
        raise StorageError("/secret/path: the disk is full", hint="-")

    with monkeypatch.context() as patch:
        patch.setattr("fedmap_aggregator.store.blobs.BlobStore.keep", full)
        with refused(UnreachableError):
            north.submit(answer, tensors)
    north.submit(answer, tensors)


# The whole server


def test_a_second_server_on_the_same_state_folder_does_not_start(centre: Running) -> None:
    with pytest.raises(StorageError, match="another process"), Aggregator(centre.config):
        pass


def test_a_server_that_stops_lets_its_agents_go_and_leaves_the_folder_free(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("stopping")
    metrics = '[metrics]\nlisten = "127.0.0.1:0"\n'
    pool = ThreadPoolExecutor(1)
    with pool, running(folder, metrics, server="reflection = true") as short:
        site = short.site("north")
        waiting = pool.submit(site.next_task, wait_seconds=60)
        polls = short.aggregator.metrics.registry
        _until(lambda: (polls.get_sample_value("fedmap_aggregator_running_calls") or 0) >= 1)
        assert short.aggregator.ready() is None
        assert short.aggregator.telemetry_port
        short.aggregator.end()
        assert short.aggregator.wait()
    assert waiting.result() is None
    with state_lock(config_in(folder)):
        pass
    assert pki_paths(config_in(folder)).ca.is_file()


def _csr(site: str) -> bytes:
    return make_csr(new_key(), Identity("site", site))


def _initialise(centre: Running, study: made.Small, sites: tuple[Client, ...]) -> None:
    """Let whoever was drawn provide the first model."""
    name = study.terms.study
    _until(lambda: centre.status(name).task_id == "initialise")
    (drawn,) = [m.site for m in centre.status(name).members if m.answer == "waiting"]
    next(site for site in sites if site.name == drawn).work(study)
    _until(lambda: centre.status(name).task_id == "round-1")


def _open_round(centre: Running, pair: tuple[Client, Client], study: made.Small) -> None:
    for site in pair:
        site.work(study)
    _initialise(centre, study, pair)


def _until(holds: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1200):
        if holds():
            return
        pause.wait(0.05)
    raise AssertionError("it never came true")


def _greets(site: Client) -> bool:
    try:
        site.hello()
    except FedmapError:
        return False
    return True


def _enrols(centre: Running, site: str, token: str) -> bool:
    try:
        centre.enrol(site, token, _csr(site))
    except LimitError:
        return False
    return True
