"""The commands as their users run them: real processes, local ones first, then against a real server."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aggregator.config import AggregatorConfig
from aggregator.config_file import write_first_config
from aggregator.initialise import initialise
from aggregator.operator_profile import OperatorProfile, profile_text, read_profile
from aggregator.wiring import Aggregator
from common.errors import ConfigError
from common.service_config import read_config

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "lab" / "plans" / "interval.toml"


def aggregator(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder, without the settings of whoever runs the tests."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("FEDMAP_")}
    return subprocess.run(
        [sys.executable, "-m", "aggregator.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `init` has run."""
    write_first_config(tmp_path / "aggregator.toml", f"localhost:{free_port()}", Path("state"))
    config = read_config(tmp_path / "aggregator.toml", AggregatorConfig)
    initialise(config, "admin", datetime.now(UTC))
    return tmp_path


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, contextlib, aggregator.cli as cli\n"
        "with contextlib.suppress(SystemExit): cli.app(['--help'])\n"
        "print(sorted({'torch', 'sqlalchemy', 'grpc', 'numpy', 'cryptography'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_init_writes_a_configuration_an_identity_and_a_private_profile(folder: Path) -> None:
    pki = folder / "state" / "pki"
    assert (folder / "aggregator.toml").is_file()
    assert (pki / "joining.pem").is_file()
    for secret in (pki / "operator.toml", pki / "ca.key", pki / "server.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "state").stat().st_mode) == 0o700


def test_init_tells_what_it_made(tmp_path: Path) -> None:
    done = aggregator(tmp_path, "init", "--address", "localhost:8443")
    assert "CA fingerprint    SHA256:" in done.stdout
    assert "joining.pem" in done.stdout
    assert "Next: fedmap-aggregator serve" in done.stdout


def test_init_in_json_is_json_alone(tmp_path: Path) -> None:
    done = aggregator(tmp_path, "init", "--address", "localhost:8443", "--json")
    made = json.loads(done.stdout)
    assert made["ca_fingerprint"].startswith("SHA256:")
    assert Path(made["operator_profile"]).is_file()


def test_a_second_init_changes_nothing_and_says_why(folder: Path) -> None:
    before = (folder / "state" / "pki" / "ca.pem").read_bytes()
    done = aggregator(folder, "init")
    assert done.returncode == 1
    assert "conflict" in done.stderr
    assert "hint:" in done.stderr
    assert (folder / "state" / "pki" / "ca.pem").read_bytes() == before


def test_init_without_an_address_or_a_file_asks_for_one(tmp_path: Path) -> None:
    done = aggregator(tmp_path, "init")
    assert done.returncode == 1
    assert "--address" in done.stderr
    assert not (tmp_path / "state").exists()


def test_check_config_names_every_fault_at_once(tmp_path: Path) -> None:
    (tmp_path / "aggregator.toml").write_text(
        '[server]\nadress = "x:1"\nstate = "s"\n[log]\nlevel = "loud"\n[limit]\n'
    )
    done = aggregator(tmp_path, "check-config")
    assert done.returncode == 1
    for word in ("server.adress", "did you mean `address`", "log.level", "limit", "hint:"):
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_check_config_shows_what_is_in_effect(folder: Path) -> None:
    shown = json.loads(aggregator(folder, "check-config", "--json").stdout)
    assert shown["settings"]["limits.max_answer_mib"] == 2048
    assert shown["settings"]["server.listen"].startswith("0.0.0.0:")


def test_the_configuration_is_found_through_the_environment(folder: Path) -> None:
    done = aggregator(Path("/"), "check-config", FEDMAP_AGGREGATOR_CONFIG=str(folder / "aggregator.toml"))
    assert done.returncode == 0, done.stderr


def test_an_error_in_json_mode_is_json_too(tmp_path: Path) -> None:
    done = aggregator(tmp_path, "check-config", "--json")
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"] == "config"


def test_an_unknown_command_is_wrong_usage(tmp_path: Path) -> None:
    assert aggregator(tmp_path, "conquer").returncode == 2


def test_doctor_passes_a_fresh_aggregator_and_exits_3_for_a_fault(folder: Path) -> None:
    done = aggregator(folder, "doctor")
    assert done.returncode == 0, done.stdout
    assert "fail" not in done.stdout
    (folder / "state" / "pki" / "ca.key").unlink()
    done = aggregator(folder, "doctor", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["status"] == "fail"


def test_an_operator_command_without_any_profile_says_what_to_give(tmp_path: Path) -> None:
    done = aggregator(tmp_path, "status")
    assert done.returncode == 1
    assert "--profile" in done.stderr


def test_an_aggregator_that_does_not_run_is_unreachable_with_a_hint(folder: Path) -> None:
    done = aggregator(folder, "status")
    assert done.returncode == 1
    assert "error (unreachable)" in done.stderr
    assert "hint:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_faulty_plan_is_refused_before_anything_is_sent(folder: Path) -> None:
    (folder / "plan.toml").write_text(PLAN.read_text().replace("balanced_accuracy", "beauty"))
    done = aggregator(folder, "study", "create", "plan.toml")
    assert done.returncode == 1
    assert "error (plan)" in done.stderr
    assert "task.metric" in done.stderr


def test_operators_are_added_listed_and_revoked_without_the_service(folder: Path) -> None:
    added = aggregator(folder, "operator", "add", "kim", "--out", "kim.toml")
    assert added.returncode == 0, added.stderr
    assert stat.S_IMODE((folder / "kim.toml").stat().st_mode) == 0o600
    assert read_profile(folder / "kim.toml").name == "kim"
    revoked = aggregator(folder, "operator", "revoke", "admin", "--json")
    assert json.loads(revoked.stdout)["revoked_certificates"] == 1
    listed = json.loads(aggregator(folder, "operator", "list", "--json").stdout)
    assert [(row["operator"], row["revoked_unix_ms"] is None) for row in listed] == [
        ("admin", False),
        ("kim", True),
    ]


def test_an_unknown_operator_is_not_found(folder: Path) -> None:
    done = aggregator(folder, "operator", "revoke", "nobody")
    assert done.returncode == 1
    assert "not_found" in done.stderr


def test_an_operator_profile_is_never_written_over(folder: Path) -> None:
    (folder / "kim.toml").write_text("mine")
    done = aggregator(folder, "operator", "add", "kim", "--out", "kim.toml")
    assert done.returncode == 1
    assert (folder / "kim.toml").read_text() == "mine"


PEM = "-----BEGIN X-----\nabc\n-----END X-----\n"


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    for proxy in ("", "http://proxy:3128"):
        profile = OperatorProfile("kim", "host:1", PEM, PEM, PEM, proxy)
        path.write_text(profile_text(profile))
        path.chmod(0o600)
        assert read_profile(path) == profile


def test_a_profile_never_shows_its_key() -> None:
    assert "abc" not in repr(OperatorProfile("kim", "host:1", PEM, PEM, PEM))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not toml", "not valid TOML"),
        ('name = "kim"', "address is missing"),
        (profile_text(OperatorProfile("kim", "host", PEM, PEM, PEM)), "host:port"),
        (profile_text(OperatorProfile("kim", "host:1", "x", PEM, PEM)), "ca is not in PEM form"),
        (profile_text(OperatorProfile("kim", "host:1", PEM, PEM, PEM)) + "more = 1\n", "more: unknown key"),
    ],
)
def test_a_faulty_profile_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=problem):
        read_profile(path)


# Against a real server: one for all tests below, each with names of its own.


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an aggregator that runs."""
    folder = tmp_path_factory.mktemp("served")
    path = folder / "aggregator.toml"
    path.write_text('[server]\naddress = "localhost:1"\nlisten = "127.0.0.1:0"\nstate = "state"\n')
    initialise(read_config(path, AggregatorConfig), "admin", datetime.now(UTC))
    with Aggregator(read_config(path, AggregatorConfig)) as running:
        for file in (path, folder / "state" / "pki" / "operator.toml"):
            file.write_text(file.read_text().replace("localhost:1", f"localhost:{running.port}"))
        path.write_text(path.read_text().replace("127.0.0.1:0", f"127.0.0.1:{running.port}"))
        yield folder


def answered(folder: Path, *arguments: str | Path) -> dict[str, object]:
    done = aggregator(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def create_study(folder: Path, name: str, *sites: str) -> None:
    """A study that the given sites are invited to."""
    text = PLAN.read_text().replace("interval-iron", name)
    (folder / f"{name}.toml").write_text(text)
    for site in sites:
        answered(folder, "invite", site, "--tier", "1", "--region", "North")
    named = [part for site in sites for part in ("--site", site)]
    answered(folder, "study", "create", f"{name}.toml", "--rounds", "3", *named)


def test_invite_prints_a_token_the_fingerprint_and_the_command_to_send(served: Path) -> None:
    done = aggregator(served, "invite", "invited", "--tier", "2", "--region", "North West")
    assert done.returncode == 0, done.stderr
    assert "CA fingerprint  SHA256:" in done.stdout
    assert str(served / "state" / "pki" / "joining.pem") in done.stdout
    assert "fedmap-site enrol" in done.stdout
    site = aggregator(served, "sites", "--json")
    (listed,) = [row for row in json.loads(site.stdout) if row["name"] == "invited"]
    assert (listed["tier"], listed["region"], listed["state"]) == (2, "North West", "invited")


def test_the_token_of_an_invitation_is_stored_hashed(served: Path) -> None:
    token = str(answered(served, "invite", "hashed", "--tier", "1")["token"])
    # In a process of its own: closing a file of SQLite's gives up all locks that this process has on it.
    found = subprocess.run(["grep", "-rlF", token, served / "state"], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "")


def test_a_bad_name_is_refused_by_the_server_with_its_hint(served: Path) -> None:
    done = aggregator(served, "invite", "Saint Elsewhere", "--tier", "1")
    assert done.returncode == 1
    assert "error (rejected)" in done.stderr
    assert "lower-case letters" in done.stderr


def test_a_study_is_created_once_and_refused_under_other_terms(served: Path) -> None:
    create_study(served, "first", "first-a", "first-b")
    again = answered(
        *(served, "study", "create", "first.toml", "--rounds", "3"),
        *("--site", "first-a", "--site", "first-b"),
    )
    assert again["sites"] == ["first-a", "first-b"]
    other = aggregator(served, "study", "create", "first.toml", "--seed", "9", "--site", "first-a")
    assert other.returncode == 1
    assert "Traceback" not in other.stderr


def test_a_start_below_quorum_names_who_is_missing(served: Path) -> None:
    create_study(served, "early", "early-a", "early-b")
    done = aggregator(served, "study", "start", "early")
    assert done.returncode == 1
    assert "error (state)" in done.stderr
    assert "early-a" in done.stderr


def test_status_shows_one_study_in_full_and_all_in_a_table(served: Path) -> None:
    create_study(served, "shown", "shown-a", "shown-b")
    one = aggregator(served, "status", "shown")
    assert one.returncode == 0, one.stderr
    assert "shown-a" in one.stdout
    assert "0 of 3 rounds" in one.stdout
    table = aggregator(served, "status")
    assert any(line.startswith("shown") and "approvals" in line for line in table.stdout.splitlines())


def test_an_aborted_study_ends_the_watch_and_gives_results(served: Path) -> None:
    create_study(served, "ended", "ended-a", "ended-b")
    early = aggregator(served, "study", "results", "ended", "--out", "ended-results")
    assert early.returncode == 1
    assert "error (state)" in early.stderr
    assert answered(served, "study", "abort", "ended", "--yes")["phase"] == "aborted"
    watched = aggregator(served, "status", "ended", "--watch")
    assert watched.returncode == 0
    assert "aborted" in watched.stdout
    done = aggregator(served, "study", "results", "ended", "--out", "ended-results")
    assert done.returncode == 0, done.stderr
    assert (served / "ended-results" / "metrics.csv").is_file()


def test_an_abort_without_yes_is_not_done_when_nobody_can_be_asked(served: Path) -> None:
    create_study(served, "kept", "kept-a", "kept-b")
    assert aggregator(served, "study", "abort", "kept").returncode == 1
    studies = json.loads(aggregator(served, "status", "kept", "--json").stdout)["studies"]
    assert studies[0]["phase"] == "approvals"


def test_an_unknown_study_is_not_found(served: Path) -> None:
    done = aggregator(served, "status", "nothing-of-the-kind")
    assert done.returncode == 1
    assert "error (not_found)" in done.stderr


def test_a_revoked_site_is_listed_as_such(served: Path) -> None:
    answered(served, "invite", "leaver", "--tier", "1")
    done = aggregator(served, "revoke", "leaver", "--yes", "--reason", "left")
    assert done.returncode == 0, done.stderr
    sites = json.loads(aggregator(served, "sites", "--json").stdout)
    assert {"revoked"} == {row["state"] for row in sites if row["name"] == "leaver"}


def test_the_audit_log_is_verified_and_its_head_shown(served: Path) -> None:
    done = aggregator(served, "audit", "verify")
    assert done.returncode == 0, done.stderr
    assert "The audit log is whole" in done.stdout


def test_an_offer_is_exported_as_a_file_and_a_foreign_file_is_refused(served: Path) -> None:
    create_study(served, "filed", "filed-a", "filed-b")
    made = answered(served, "round", "export", "filed", "--site", "filed-a", "--out", "offer.drop")
    assert (served / "offer.drop").stat().st_size == made["bytes"]
    (served / "foreign.drop").write_bytes(b"not a drop file")
    done = aggregator(served, "round", "import", "foreign.drop")
    assert done.returncode == 1
    assert "error (integrity)" in done.stderr
    nothing = aggregator(served, "round", "export", "filed", "--site", "nobody", "--out", "none.drop")
    assert nothing.returncode == 1
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
    elsewhere = aggregator(tmp_path, "doctor", FEDMAP_OPERATOR_PROFILE=str(profile))
    assert elsewhere.returncode == 0, elsewhere.stdout
    assert "knows operator kim" in elsewhere.stdout
    assert aggregator(served, "operator", "revoke", "kim").returncode == 0
    done = aggregator(tmp_path, "sites", "--profile", profile)
    assert done.returncode == 1
    assert "error (not_allowed)" in done.stderr


def test_a_second_service_on_the_same_state_folder_is_refused(served: Path) -> None:
    done = aggregator(served, "serve")
    assert done.returncode == 1
    assert "error (storage)" in done.stderr
    assert "another process" in done.stderr
