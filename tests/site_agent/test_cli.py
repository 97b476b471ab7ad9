"""`fedmap-site` from the outside: what it prints, its exit codes, and that it never shows a stack trace."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedmap.contract import wire
from fedmap.contract.v1 import values
from fedmap.errors import RejectedError, TokenError
from fedmap.trust import drop_files
from fedmap.trust.certificates import Identity
from fedmap.trust.pki import key_pem, new_key
from fedmap_site.cli import main as cli
from fedmap_site.identity.files import read_identity
from fedmap_site.loop.drop_rounds import FileSite
from tests.forked_programs import ForkedProgram
from tests.lab.conftest import BINARY_PLAN
from tests.ran import Command, in_this_process
from tests.site_agent.federation_double import AggregatorDouble, Authority, now
from tests.site_agent.running_agent import AgentSite

ENDS_WITHIN_SECONDS = 60


@pytest.fixture
def aggregator() -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        yield double


@pytest.fixture
def site(tmp_path: Path, aggregator: AggregatorDouble) -> AgentSite:
    return AgentSite(tmp_path, aggregator, egress="review")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs the command in this process, as its entry point does."""
    monkeypatch.setenv("FEDMAP_SITE_CONFIG", str(tmp_path / "site.toml"))
    monkeypatch.setenv("COLUMNS", "200")

    return in_this_process("fedmap-site", cli.main, monkeypatch, capsys)


def write_config(folder: Path, aggregator: AggregatorDouble) -> None:
    (folder / "site.toml").write_text(
        f'[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "{aggregator.address}"\n'
    )


def offer(site: AgentSite) -> values.OfferedStudy:
    return values.OfferedStudy(
        study="toy",
        terms_json=site.terms.to_json(),
        terms_digest="not to be believed",
        phase="approvals",
        membership="invited",
    )


def wait_in_outbox(site: AgentSite, aggregator: AggregatorDouble) -> None:
    """An answer that waits for review."""
    aggregator.tasks = [site.statistics()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    aggregator.tasks = []


def test_a_site_enrols_with_joining_file_token_and_fingerprint(
    command: Command, tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    write_config(tmp_path, aggregator)
    fingerprint = aggregator.authority.ca.fingerprint
    arguments = ("enrol", "--joining", str(joining), "--token", "t", "--ca-fingerprint", fingerprint)
    command(*arguments).done("a is enrolled")
    assert read_identity(tmp_path / "state").key
    command(*arguments).refused(1, "--again")
    assert command(*arguments, "--again", "--json").json["site"] == "a"


def test_enrol_if_missing_asks_for_a_certificate_once(
    command: Command, tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    write_config(tmp_path, aggregator)
    fingerprint = aggregator.authority.ca.fingerprint
    arguments = ("enrol", "--if-missing", "--joining", str(joining), "--ca-fingerprint", fingerprint)
    first = command(*arguments, "--token", "t", "--json")
    assert first.json["made"] is True
    before = read_identity(tmp_path / "state")
    assert command(*arguments, "--token", "spent", "--json").json["made"] is False
    assert "nothing was changed" in command(*arguments).stdout
    assert read_identity(tmp_path / "state") == before
    assert aggregator.certificates_issued == 1


def test_enrol_writes_a_first_configuration_where_there_is_none(
    command: Command, tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    fingerprint = aggregator.authority.ca.fingerprint
    command(
        *("enrol", "--joining", str(joining), "--token", "t", "--fingerprint", fingerprint),
        *("--site", "a", "--address", aggregator.address),
    ).done()
    assert command("check-config").returncode == 0
    assert 'egress = "review"' in (tmp_path / "policy.toml").read_text()


def test_enrol_refuses_an_invitation_for_another_site(
    command: Command, site: AgentSite, tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    command("enrol", "--joining", str(joining), "--again", "--site", "b", "--token", "t").refused(
        78, "site.name: is a, the invitation is for b"
    )
    assert site.config.site.name == "a"


def test_a_wrong_token_is_told_with_the_next_step(
    command: Command, site: AgentSite, tmp_path: Path, aggregator: AggregatorDouble
) -> None:
    aggregator.refuse["Enrol"] = TokenError("the token is not valid", hint="ask for a new invitation")
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    fingerprint = aggregator.authority.ca.fingerprint
    before = read_identity(site.config.site.state)
    done = command(
        *("enrol", "--joining", str(joining), "--token", "secret-token"),
        *("--ca-fingerprint", fingerprint, "--again"),
    ).refused(1, "error (token)", "ask for a new invitation")
    assert "secret-token" not in done.stderr + done.stdout
    assert read_identity(site.config.site.state) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("enrol",),
        ("enrol", "--offline-request", "x", "--joining", "site.toml"),
        ("approve", "--approver", "Dr Ada"),
        ("approve", "abc"),
        ("release", "--approver", "Dr Ada"),
        ("release", "--approver", "Dr Ada", "--all", "toy.statistics.0"),
        ("no-such-command",),
    ],
)
def test_wrong_usage_ends_with_code_two(
    command: Command, site: AgentSite, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(site.folder)
    assert command(*arguments).returncode == 2


def test_a_certificate_of_the_own_pki_is_taken_over(
    command: Command, site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    own = aggregator.authority.site("a")
    for name, pem in (("cert", own.certificate), ("key", own.key), ("ca", own.authority)):
        (tmp_path / name).write_bytes(pem)
    files = ("--certificate", str(tmp_path / "cert"), "--key", str(tmp_path / "key"))
    assert command("enrol", *files, "--again").returncode == 2  # no authority
    assert command("enrol", *files, "--ca", str(tmp_path / "ca"), "--again").returncode == 0
    assert read_identity(site.config.site.state).external


def test_enrolment_through_an_airlock(command: Command, site: AgentSite, tmp_path: Path) -> None:
    authority, request, reply = Authority(), tmp_path / "request", tmp_path / "reply"
    assert command("enrol", "--offline-request", str(request), "--token", "t", "--again").returncode == 0
    read = drop_files.read(request)
    read.verify(b"", now(), Identity("site", "a"))
    assert read.drop.enrolment is not None
    assert read.drop.enrolment.token == "t"
    certificate = authority.ca.issue(read.drop.enrolment.csr_pem, Identity("site", "a"), 10, now())
    key, server = authority.server()
    content = values.DropCertificate(certificate_pem=certificate, ca_pem=authority.ca.certificate_pem)
    drop_files.write(reply, values.Drop(site="a", certificate=content), None, key, server)
    given = ("enrol", "--offline-certificate", str(reply), "--again", "--ca-fingerprint")
    command(*given, Authority().ca.fingerprint).refused(1, "fingerprint")
    assert command(*given, authority.ca.fingerprint).returncode == 0
    assert read_identity(site.config.site.state).certificate == certificate


def test_studies_shows_the_digest_that_is_computed_here(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.studies = [offer(site)]
    shown = command("studies").stdout
    assert site.terms.digest in shown
    assert "Before you approve toy" in shown
    assert "not to be believed" not in command("studies", "--json").stdout


def test_approve_shows_the_key_facts_records_them_and_tells_the_aggregator(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    site.site().state.leave("toy")
    aggregator.studies = [offer(site)]
    done = command("approve", site.terms.digest, "--approver", "Dr Ada").done()
    for fact in ("A toy study", "mlp", "binary", site.terms.digest, "Dr Ada"):
        assert fact in done.stdout
    assert aggregator.approved == [("toy", site.terms.digest)]
    approval = site.site().state.approval("toy")
    assert approval is not None
    assert (approval.approver, approval.left) == ("Dr Ada", False)
    assert "study.approved" in site.actions()


def test_a_digest_that_nobody_offers_is_not_approved(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.studies = [offer(site)]
    assert command("approve", "0" * 64, "--approver", "Dr Ada").returncode == 1
    assert aggregator.approved == []


def test_a_study_that_the_policy_forbids_is_not_approved(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    site.policy_path.write_text("max_rounds = 1\n")
    aggregator.studies = [offer(site)]
    command("approve", site.terms.digest, "--approver", "Dr Ada").refused(1, "max_rounds")
    assert aggregator.approved == []


def test_leave_withdraws_what_was_not_sent_and_can_delete_the_models(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.tasks = [site.fit()]
    site.run_until(lambda: any(poll.in_hand for poll in aggregator.polls))
    done = command("leave", "toy", "--delete", "--json")
    assert done.json == {"study": "toy", "left": True, "withdrawn": 1, "deleted_files": 2}
    assert aggregator.left == ["toy"]
    assert site.states() == {"toy.round-1.0": "withdrawn"}
    assert not list((site.config.site.state / "studies" / "toy").glob("models/*"))


def test_outbox_lists_and_shows_what_would_leave(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    assert "empty" in command("outbox").stdout
    wait_in_outbox(site, aggregator)
    assert "toy.statistics.0" in command("outbox").stdout
    assert "toy.statistics.0" in command("outbox", "list", "--study", "toy").stdout
    shown = command("outbox", "show", "toy.statistics.0").stdout
    assert "statistics.rows" in shown
    assert "waiting review" in shown
    assert "manifest" in command("outbox", "show", "toy.statistics.0", "--json").json
    assert command("outbox", "show", "../identity").returncode == 1


def test_release_names_its_approver_and_reject_keeps_the_answer(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    wait_in_outbox(site, aggregator)
    assert command("release", "toy.statistics.0", "--approver", " ").returncode == 1
    assert command("release", "--study", "other", "--all", "--approver", "Dr Ada").returncode == 0
    assert site.states() == {"toy.statistics.0": "waiting_review"}
    done = command("release", "--study", "toy", "--all", "--approver", "Dr Ada")
    assert "released toy.statistics.0 by Dr Ada" in done.stdout
    command("reject", "toy.statistics.0", "--approver", "Dr Ada").refused(1, "cannot become rejected")


def test_audit_verify_finds_a_changed_entry(command: Command, site: AgentSite) -> None:
    site.site().audit.append("study.approved", "toy")
    site.site().audit.append("study.left", "toy")
    assert command("audit", "verify", "--json").json["entries"] == 2
    log = site.config.site.state / "audit.jsonl"
    log.write_text(log.read_text().replace("study.approved", "study.forgotten"))
    command("audit", "verify").refused(1, "entry 1")


def test_status_tells_from_the_sites_own_records(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    wait_in_outbox(site, aggregator)
    facts = command("status", "--json").json
    assert facts["studies"] == ["toy"]
    assert facts["outbox"] == {"waiting_review": 1}
    assert facts["agent"] == "not running"
    with site.running():
        polls = len(aggregator.polls)
        aggregator.wait_for(lambda: len(aggregator.polls) > polls)
        assert "running, connected" in command("status").stdout


def test_doctor_ends_with_code_three_when_something_fails(command: Command, site: AgentSite) -> None:
    assert command("doctor").returncode == 0
    (site.folder / "patients.csv").unlink()
    done = command("doctor")
    assert done.returncode == 3
    assert "next:" in done.stdout
    found = json.loads(command("doctor", "--json").stdout)
    assert [f["name"] for f in found if f["status"] == "fail"] == ["data"]


def test_check_config_reports_every_fault_at_once(command: Command, site: AgentSite) -> None:
    assert "policy: egress = review" in command("check-config").stdout
    site.config_path.write_text('[site]\nname = "A"\n[agregator]\n')
    done = command("check-config").refused(78)
    for part in ("site.name", "site.state", "did you mean `aggregator`"):
        assert part in done.stderr


def test_check_data_counts_and_never_shows_a_row(command: Command, site: AgentSite) -> None:
    (site.folder / "plan.toml").write_text(BINARY_PLAN)
    command("check-data", str(site.folder / "plan.toml")).done("training rows")
    text = (site.folder / "patients.csv").read_text().splitlines()
    (site.folder / "patients.csv").write_text("\n".join([*text, "planted-identifier" + "," * 3]))
    broken = command("check-data", str(site.folder / "plan.toml"), "--json").refused(1)
    assert broken.json["usable"] is False
    assert "planted-identifier" not in broken.stdout + broken.stderr


def test_a_round_travels_as_files_through_review(
    command: Command, site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    authority, folder = aggregator.authority, tmp_path
    key, server = authority.server()
    site.site().state.leave("toy")

    def send(name: str, drop: values.Drop, tensors: Path | None = None) -> str:
        drop_files.write(folder / name, replace(drop, site="a"), tensors, key, server)
        return str(folder / name)

    terms = site.terms.to_json()
    an_offer = send("offer", values.Drop(offer=values.DropOffer(study="toy", terms_json=terms)))
    command("approve", "--file", an_offer, "--out", str(folder / "yes"), "--approver", "Dr Ada").done()
    approval = drop_files.read(folder / "yes")
    approval.verify(authority.ca.certificate_pem, now(), Identity("site", "a"))
    assert approval.drop.approval == values.DropApproval("toy", site.terms.digest)

    task = site.fit()
    (folder / "prior").write_bytes(aggregator.priors[task.prior_digest])
    content = values.DropTask(task=wire.write(task), terms_json=terms)
    file = send("task", values.Drop(task=content), folder / "prior")
    reply = folder / "reply"
    first = command("round", "run", file, "--out", str(reply), "--json").done()
    assert first.json["file"] is None
    assert not reply.exists()
    assert command("release", "toy.round-1.0", "--approver", "Dr Ada").returncode == 0
    assert command("round", "run", file, "--out", str(reply)).returncode == 0
    answer = drop_files.read(reply, folder=folder)
    answer.verify(authority.ca.certificate_pem, now(), Identity("site", "a"))
    assert answer.drop.answer is not None
    sent = wire.read(values.Answer, answer.drop.answer.answer)
    assert sent.fit is not None
    assert sent.fit.epochs > 0
    assert answer.tensors_path is not None
    assert "answer.written_to_file" in site.actions()
    command("round", "run", an_offer, "--out", str(reply)).refused(1, "approve --file")


@pytest.mark.parametrize("fault", ["foreign signer", "other site", "other prior"])
def test_a_file_that_is_not_what_it_should_be_is_refused(
    command: Command, site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path, fault: str
) -> None:
    key, server = (Authority() if fault == "foreign signer" else aggregator.authority).server()
    task = site.fit()
    data = aggregator.priors[task.prior_digest]
    (tmp_path / "prior").write_bytes(data + b"x" if fault == "other prior" else data)
    content = values.DropTask(task=wire.write(task), terms_json=site.terms.to_json())
    drop = values.Drop(site="b" if fault == "other site" else "a", task=content)
    drop_files.write(tmp_path / "task", drop, tmp_path / "prior", key, server)
    command("round", "run", str(tmp_path / "task"), "--out", str(tmp_path / "reply")).refused(
        1, "error (integrity)"
    )
    assert not (tmp_path / "reply").exists()
    assert site.states() == {}


def test_a_file_signed_by_a_site_is_not_taken_for_the_aggregators(
    site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    other = aggregator.authority.site("b")
    forged = values.Drop(site="a", offer=values.DropOffer(study="toy", terms_json="{}"))
    drop_files.write(tmp_path / "forged", forged, None, other.key, other.certificate)
    by_files: FileSite = site.site().by_files()
    with pytest.raises(Exception, match="site b"), by_files.opened(tmp_path / "forged", "offer", now()):
        pass


def test_a_refusal_of_the_aggregator_reaches_the_person(
    command: Command, site: AgentSite, aggregator: AggregatorDouble
) -> None:
    aggregator.studies = [offer(site)]
    aggregator.refuse["Approve"] = RejectedError("the study has started without this site", hint="wait")
    command("approve", site.terms.digest, "--approver", "Dr Ada").refused(1, "has started without this site")


@contextmanager
def agent_process(site: AgentSite, stdout: Path, stderr: Path) -> Iterator[ForkedProgram]:
    environment = {**os.environ, "FEDMAP_SITE_CONFIG": str(site.config_path)}
    agent = ForkedProgram("fedmap-site", ["run"], environment, stdout, stderr)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_the_running_agent_cleanly(
    site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    with agent_process(site, stdout, stderr) as agent:
        aggregator.wait_for(lambda: aggregator.polls, ENDS_WITHIN_SECONDS)
        agent.send_signal(number)
        assert agent.wait(timeout=ENDS_WITHIN_SECONDS) == code
    out, err = stdout.read_bytes(), stderr.read_bytes()
    assert b"Traceback" not in err
    for line in (b"site ", b"aggregator ", b"proxy       none", b"ca_bundle ", b"policy ", b"state "):
        assert line in out
    assert all(json.loads(line)["service"] == "site" for line in err.splitlines())


def test_a_fit_under_way_is_abandoned_when_the_agent_is_stopped(
    site: AgentSite, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    """A plan with a million epochs: only giving up ends it."""
    site.adopt(BINARY_PLAN.replace("epochs = 3", "epochs = 1000000\npatience = 1000000"))
    aggregator.tasks = [site.fit()]
    with agent_process(site, tmp_path / "log", tmp_path / "log") as agent:
        aggregator.wait_for(lambda: any(beat.progress > 0 for beat in aggregator.beats), ENDS_WITHIN_SECONDS)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=ENDS_WITHIN_SECONDS) == 0
    assert site.states() == {}


def test_the_key_never_appears_in_what_is_printed(command: Command, site: AgentSite) -> None:
    for arguments in (("status", "--json"), ("check-config", "--json"), ("doctor", "--json")):
        assert "PRIVATE KEY" not in command(*arguments).stdout
    assert key_pem(new_key())[:10] == read_identity(site.config.site.state).key[:10]
