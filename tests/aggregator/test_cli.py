"""Commands that need no running aggregator, as real processes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedmap.errors import ConfigError
from fedmap.process.settings import read_config
from fedmap_aggregator.cli.config_file import write_first_config
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import initialise
from fedmap_aggregator.identity.profile import OperatorProfile, profile_text, read_profile
from tests.aggregator.commands import PLAN, ROOT, aggregator, free_port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `init` has run."""
    write_first_config(tmp_path / "aggregator.toml", f"localhost:{free_port()}", Path("state"))
    config = read_config(tmp_path / "aggregator.toml", AggregatorConfig)
    initialise(config, "admin", datetime.now(UTC))
    return tmp_path


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys, contextlib, fedmap_aggregator.cli.main as cli\n"
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
    for told in ("CA fingerprint    SHA256:", "joining.pem", "Next: fedmap-aggregator serve"):
        assert told in done.stdout


def test_a_second_init_changes_nothing_and_says_why(folder: Path) -> None:
    before = (folder / "state" / "pki" / "ca.pem").read_bytes()
    aggregator(folder, "init").refused(1, "conflict", "hint:")
    assert (folder / "state" / "pki" / "ca.pem").read_bytes() == before


FAULTY = '[server]\nadress = "x:1"\nstate = "s"\n[log]\nlevel = "loud"\n[limit]\n'
EVERY_FAULT = ("server.adress", "did you mean `address`", "log.level", "limit", "hint:")


@pytest.mark.parametrize(
    ("files", "command", "code", "told"),
    [
        ({}, "init", 78, ("--address",)),
        ({"aggregator.toml": FAULTY}, "check-config", 78, EVERY_FAULT),
        ({}, "check-config --json", 78, ('{"error": "config"',)),
        ({}, "conquer", 2, ()),
        ({}, "status", 78, ("--profile",)),
    ],
)
def test_what_is_missing_or_wrong_before_there_is_an_aggregator_is_said(
    tmp_path: Path, files: dict[str, str], command: str, code: int, told: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = aggregator(tmp_path, *command.split())
    assert done.returncode == code
    assert [word for word in told if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state").exists()


BEAUTY = PLAN.read_text().replace("balanced_accuracy", "beauty")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("status", 69, ("error (unreachable)", "hint:")),
        ("study create plan.toml", 1, ("error (plan)", "task.metric")),
        ("operator revoke nobody", 1, ("not_found",)),
        ("operator add kim --out kim.toml", 1, ("kim.toml",)),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(
    folder: Path, command: str, code: int, told: tuple[str, ...]
) -> None:
    for name, text in (("plan.toml", BEAUTY), ("kim.toml", "mine")):
        (folder / name).write_text(text)
    done = aggregator(folder, *command.split())
    assert done.returncode == code
    assert [word for word in told if word not in done.stderr] == []
    assert "Traceback" not in done.stderr
    assert (folder / "kim.toml").read_text() == "mine"


def test_check_config_shows_what_is_in_effect(folder: Path) -> None:
    shown = json.loads(aggregator(folder, "check-config", "--json").stdout)
    assert shown["settings"]["limits.max_answer_mib"] == 2048
    assert shown["settings"]["server.listen"].startswith("0.0.0.0:")


def test_the_configuration_is_found_through_the_environment(folder: Path) -> None:
    aggregator(Path("/"), "check-config", FEDMAP_AGGREGATOR_CONFIG=str(folder / "aggregator.toml")).done()


def test_doctor_passes_a_fresh_aggregator_and_exits_3_for_a_fault(folder: Path) -> None:
    done = aggregator(folder, "doctor").done()
    assert "fail" not in done.stdout
    (folder / "state" / "pki" / "ca.key").unlink()
    done = aggregator(folder, "doctor", "--json").refused(3)
    assert json.loads(done.stdout)["status"] == "fail"


def test_operators_are_added_listed_and_revoked_without_the_service(folder: Path) -> None:
    aggregator(folder, "operator", "add", "kim", "--out", "kim.toml").done()
    assert stat.S_IMODE((folder / "kim.toml").stat().st_mode) == 0o600
    assert read_profile(folder / "kim.toml").name == "kim"
    revoked = aggregator(folder, "operator", "revoke", "admin", "--json")
    assert json.loads(revoked.stdout)["revoked_certificates"] == 1
    listed = json.loads(aggregator(folder, "operator", "list", "--json").stdout)
    assert [(row["operator"], row["revoked_unix_ms"] is None) for row in listed] == [
        ("admin", False),
        ("kim", True),
    ]


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


def test_init_if_missing_makes_an_identity_once_and_never_another(tmp_path: Path) -> None:
    first = aggregator(tmp_path, "init", "--address", "localhost:8443", "--if-missing", "--json")
    assert json.loads(first.stdout)["made"] is True
    before = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    again = aggregator(tmp_path, "init", "--if-missing", "--json").done()
    assert json.loads(again.stdout)["made"] is False
    assert "nothing was changed" in aggregator(tmp_path, "init", "--if-missing").stdout
    assert {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == before
