"""Commands against a real server: one for all tests, each with names of its own."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedmap.process.settings import read_config
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise
from fedmap_aggregator.wiring import Aggregator
from tests.aggregator.commands import PLAN, agent, aggregator, answered, free_port, running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an aggregator that runs."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "aggregator.toml"
    path.write_text('[server]\naddress = "localhost:1"\nlisten = "127.0.0.1:0"\nstate = "state"\n')
    initialise(read_config(path, AggregatorConfig), "admin", datetime.now(UTC))
    with Aggregator(read_config(path, AggregatorConfig)) as centre:
        for file in (path, folder / "state" / "pki" / "operator.toml"):
            file.write_text(file.read_text().replace("localhost:1", f"localhost:{centre.port}"))
        path.write_text(path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{centre.port}"))
        yield folder


def create_study(folder: Path, name: str, *sites: str) -> None:
    """A study that the given sites are invited to."""
    text = PLAN.read_text().replace("interval-iron", name)
    (folder / f"{name}.toml").write_text(text)
    for site in sites:
        answered(folder, "invite", site, "--tier", "1", "--region", "North")
    named = [part for site in sites for part in ("--site", site)]
    answered(folder, "study", "create", f"{name}.toml", "--rounds", "3", *named)


def test_invite_prints_a_token_the_fingerprint_and_the_command_to_send(served: Path) -> None:
    aggregator(served, "invite", "invited", "--tier", "2", "--region", "North West").done(
        "CA fingerprint  SHA256:", str(served / "state" / "pki" / "joining.pem"), "fedmap-site enrol"
    )
    site = aggregator(served, "sites", "--json")
    (listed,) = [row for row in json.loads(site.stdout) if row["name"] == "invited"]
    assert (listed["tier"], listed["region"], listed["state"]) == (2, "North West", "invited")


def test_the_token_of_an_invitation_is_stored_hashed(served: Path) -> None:
    token = str(answered(served, "invite", "hashed", "--tier", "1")["token"])
    # In a process of its own: closing a file of SQLite's gives up all locks that this process has on it.
    found = subprocess.run(["grep", "-rlF", token, served / "state"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("invite Saint_Elsewhere --tier 1", 1, ("error (rejected)", "lower-case letters")),
        ("status nothing-of-the-kind", 1, ("error (not_found)",)),
        ("serve", 74, ("error (storage)", "another process")),
    ],
)
def test_what_the_running_aggregator_refuses_is_told(
    served: Path, command: str, code: int, told: tuple[str, ...]
) -> None:
    done = aggregator(served, *command.split())
    assert done.returncode == code
    assert [word for word in told if word not in done.stderr] == []


def test_a_study_is_created_once_and_refused_under_other_terms(served: Path) -> None:
    create_study(served, "first", "first-a", "first-b")
    again = answered(
        *(served, "study", "create", "first.toml", "--rounds", "3"),
        *("--site", "first-a", "--site", "first-b"),
    )
    assert again["sites"] == ["first-a", "first-b"]
    aggregator(served, "study", "create", "first.toml", "--seed", "9", "--site", "first-a").refused(1)


def test_a_start_below_quorum_names_who_is_missing(served: Path) -> None:
    create_study(served, "early", "early-a", "early-b")
    aggregator(served, "study", "start", "early").refused(1, "error (state)", "early-a")


def test_status_shows_one_study_in_full_and_all_in_a_table(served: Path) -> None:
    create_study(served, "shown", "shown-a", "shown-b")
    aggregator(served, "status", "shown").done("shown-a", "0 of 3 rounds")
    table = aggregator(served, "status")
    assert any(line.startswith("shown") and "approvals" in line for line in table.stdout.splitlines())


def test_an_aborted_study_ends_the_watch_and_gives_results(served: Path) -> None:
    create_study(served, "ended", "ended-a", "ended-b")
    aggregator(served, "study", "results", "ended", "--out", "ended-results").refused(1, "error (state)")
    assert answered(served, "study", "abort", "ended", "--yes")["phase"] == "aborted"
    aggregator(served, "status", "ended", "--watch").done("aborted")
    aggregator(served, "study", "results", "ended", "--out", "ended-results").done()
    assert (served / "ended-results" / "metrics.csv").is_file()


def test_an_abort_without_yes_is_not_done_when_nobody_can_be_asked(served: Path) -> None:
    create_study(served, "kept", "kept-a", "kept-b")
    assert aggregator(served, "study", "abort", "kept").returncode == 1
    studies = json.loads(aggregator(served, "status", "kept", "--json").stdout)["studies"]
    assert studies[0]["phase"] == "approvals"


def test_a_revoked_site_is_listed_as_such(served: Path) -> None:
    answered(served, "invite", "leaver", "--tier", "1")
    aggregator(served, "revoke", "leaver", "--yes", "--reason", "left").done()
    sites = json.loads(aggregator(served, "sites", "--json").stdout)
    assert {"revoked"} == {row["state"] for row in sites if row["name"] == "leaver"}
    assert "The audit log is whole" in aggregator(served, "audit", "verify").stdout


def test_an_offer_is_exported_as_a_file_and_a_foreign_file_is_refused(served: Path) -> None:
    create_study(served, "filed", "filed-a", "filed-b")
    made = answered(served, "round", "export", "filed", "--site", "filed-a", "--out", "offer.drop")
    assert (served / "offer.drop").stat().st_size == made["bytes"]
    (served / "foreign.drop").write_bytes(b"not a drop file")
    aggregator(served, "round", "import", "foreign.drop").refused(1, "error (integrity)")
    aggregator(served, "round", "export", "filed", "--site", "nobody", "--out", "none.drop").refused(1)
    assert not (served / "none.drop").exists()


def test_doctor_knows_the_aggregator_that_serves_the_port(served: Path) -> None:
    done = aggregator(served, "doctor", "--json")
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert "served by this aggregator" in checks["port"]["finding"]
    assert "up to date" in checks["database"]["finding"]


def test_a_further_operator_works_from_elsewhere_until_revoked(served: Path, tmp_path: Path) -> None:
    profile = tmp_path / "kim.toml"
    assert aggregator(served, "operator", "add", "kim", "--out", profile).returncode == 0
    assert aggregator(tmp_path, "sites", "--profile", profile).returncode == 0
    aggregator(tmp_path, "doctor", FEDMAP_OPERATOR_PROFILE=str(profile)).done("knows operator kim")
    assert aggregator(served, "operator", "revoke", "kim").returncode == 0
    aggregator(tmp_path, "sites", "--profile", profile).refused(1, "error (not_allowed)")


def enrolled(served: Path, home: Path, name: str) -> Path:
    """The folder of a site that ran exactly the command that its invitation printed."""
    invitation = answered(served, "invite", name, "--tier", "1", "--region", "North")
    folder = home / name
    folder.mkdir()
    shutil.copy(str(invitation["joining_file"]), folder / "joining.pem")
    program, *arguments = shlex.split(str(invitation["command"]))
    assert program == "fedmap-site"
    agent(folder, *arguments).done()
    return folder


def test_a_study_that_waits_for_approvals_starts_with_the_last_of_them(served: Path, tmp_path: Path) -> None:
    homes = [enrolled(served, tmp_path, name) for name in ("wait-a", "wait-b")]
    (served / "waited.toml").write_text(PLAN.read_text().replace("interval-iron", "waited"))
    created = answered(served, "study", "create", "waited.toml", "--site", "wait-a", "--site", "wait-b")
    with running(served, "study", "start", "waited", "--wait") as starting:
        assert starting.stderr is not None
        assert "wait-a, wait-b" in starting.stderr.readline()
        for home in homes:
            agent(home, "approve", str(created["terms_digest"]), "--approver", "Data protection").done()
        out, _ = starting.communicate(timeout=60)
    assert "Study waited: started. Phase: statistics." in out
    assert answered(served, "study", "pause", "waited")["phase"] == "statistics"
    assert "statistics (paused)" in aggregator(served, "status").stdout
    assert answered(served, "study", "resume", "waited")["phase"] == "statistics"
    answered(served, "study", "abort", "waited", "--yes")


def test_a_site_joins_and_approves_by_files_alone(served: Path, tmp_path: Path) -> None:
    invitation = answered(served, "invite", "island", "--tier", "1")
    answered(served, "invite", "mainland", "--tier", "1")
    token, fingerprint = str(invitation["token"]), str(invitation["ca_fingerprint"])
    who = ("--site", "island", "--address", "localhost:1")
    agent(tmp_path, "enrol", "--offline-request", "request.drop", "--token", token, *who).done()
    taken = aggregator(served, "round", "import", tmp_path / "request.drop", "--out", tmp_path / "back.drop")
    assert "Accepted: enrolment of island" in taken.stdout
    agent(tmp_path, "enrol", "--offline-certificate", "back.drop", "--fingerprint", fingerprint).done()
    (served / "by-files.toml").write_text(PLAN.read_text().replace("interval-iron", "by-files"))
    answered(served, "study", "create", "by-files.toml", "--site", "island", "--site", "mainland")
    offer = tmp_path / "offer.drop"
    exported = aggregator(served, "round", "export", "by-files", "--site", "island", "--out", offer)
    assert "fedmap-site approve --file offer.drop" in exported.stdout
    agent(
        tmp_path, "approve", "--file", "offer.drop", "--approver", "Data protection", "--out", "approval.drop"
    ).done()
    for _ in range(2):  # repeating it changes nothing
        imported = answered(served, "round", "import", tmp_path / "approval.drop")
        assert (imported["what"], imported["site"], imported["study"]) == ("approval", "island", "by-files")
    status = json.loads(aggregator(served, "status", "by-files", "--json").stdout)["studies"][0]
    members = {member["site"]: member["membership"] for member in status["members"]}
    assert members == {"island": "approved", "mainland": "invited"}


def test_an_interrupted_watch_exits_with_130_and_no_trace(served: Path) -> None:
    create_study(served, "watched", "watched-a", "watched-b")
    with running(served, "status", "watched", "--watch") as watching:
        assert watching.stdout is not None
        assert "watched: approvals" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "Traceback" not in errors


def test_serve_runs_until_sigterm_and_ends_with_0(tmp_path: Path) -> None:
    address = f"localhost:{free_port()}"
    assert aggregator(tmp_path, "init", "--address", address).returncode == 0
    with running(tmp_path, "serve") as service:
        assert service.stderr is not None
        events = (json.loads(line)["event"] for line in service.stderr)
        assert "serving" in events
        assert "served by this aggregator" in aggregator(tmp_path, "doctor").stdout
        service.send_signal(signal.SIGTERM)
        service.communicate(timeout=60)
        assert service.returncode == 0


def test_health_asks_the_running_aggregator_without_any_secret(served: Path) -> None:
    (served / "state" / "pki" / "operator.toml").rename(served / "operator.toml")
    try:
        done = aggregator(served, "health")
    finally:
        (served / "operator.toml").rename(served / "state" / "pki" / "operator.toml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("healthy: ")


def test_health_asks_readyz_where_metrics_are_on_and_fails_when_nobody_answers(tmp_path: Path) -> None:
    path, port = tmp_path / "aggregator.toml", free_port()
    path.write_text(
        '[server]\naddress = "localhost:1"\nlisten = "127.0.0.1:0"\nstate = "state"\n'
        f'[metrics]\nlisten = "127.0.0.1:{port}"\n'
    )
    initialise(read_config(path, AggregatorConfig), "admin", datetime.now(UTC))
    with Aggregator(read_config(path, AggregatorConfig)):
        assert "ready" in str(answered(tmp_path, "health")["message"])
    path.write_text(path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{free_port()}"))
    for _with_metrics in (True, False):
        aggregator(tmp_path, "health").refused(1, "error (unreachable)", "hint: ")
        path.write_text(path.read_text().partition("[metrics]")[0])
