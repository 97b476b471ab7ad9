"""`fedmap-site bundle …` and `serve-bundles` from the outside: a clinic with a paper, a site, a hospital."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmap.web.bundle_app import make_bundle_app
from fedmap_site.bundles import download as bundle_download
from fedmap_site.bundles.server import StoreCatalogue
from fedmap_site.bundles.store import BundleStore
from fedmap_site.cli import main as cli
from fedmap_site.cli import options as cli_options
from fedmap_site.cli.options import Trusting
from fedmap_site.identity.files import write_identity
from tests.common.web.serving import Federation, serving
from tests.ran import Command, in_this_process
from tests.site_agent.bundle_shelf import Releases, entries_of
from tests.site_agent.federation_double import AggregatorDouble

ENDS_WITHIN_SECONDS = 60
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    return Releases(tmp_path / "releases", now=time.time_ns() // 1_000_000)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The current folder of a clinic: no configuration, and a place of its own for its data."""
    folder = tmp_path / "clinic"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(bundle_download, "FIRST_PAUSE", 0.0)
    for variable in ("FEDMAP_BUNDLES", "FEDMAP_SITE_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path) -> Command:
    """Runs a command in this process, in the clinic's folder."""
    assert home.is_dir()

    return in_this_process("fedmap-site", cli.main, monkeypatch, capsys)


@pytest.fixture
def clinic(home: Path) -> BundleStore:
    """Where a clinic without a configuration keeps its bundles."""
    return BundleStore(home / "data" / "fedmap" / "bundles")


# A clinic with a file and a paper


def test_a_clinic_verifies_installs_lists_and_reads_with_a_file_and_a_paper(
    command: Command, clinic: BundleStore, releases: Releases
) -> None:
    file = releases.bundle(1, tier=3)
    verified = command("bundle", "verify", file, "--fingerprint", releases.fingerprint).done()
    for number in range(1, 10):
        assert f"({number})" in verified.stdout
    assert "may be used" in verified.stdout
    assert not clinic.folder.exists()  # verifying changes nothing

    command("bundle", "install", file, "--fingerprint", releases.fingerprint.lower()).done(
        "Installed tiny-t3 version 1"
    )
    assert "tiny-t3" in command("bundle", "list").stdout
    (listed,) = command("bundle", "list", "--json").json["bundles"]
    assert (listed["name"], listed["state"]) == ("tiny-t3", "ready")
    assert "# " in command("bundle", "card", "tiny-t3").stdout
    assert command("bundle", "card", "tiny-t3", "--json").json["version"] == 1
    assert [entry.action for entry in entries_of(clinic)] == ["bundle.key_trusted", "bundle.installed"]


def test_the_card_and_its_picture_are_written_as_files(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    command("bundle", "card", "tiny-t2-1", "--out", tmp_path / "card").done()
    assert {path.name for path in (tmp_path / "card").iterdir()} == {"card.md", "calibration.svg"}


def test_verify_says_which_step_failed_and_what_to_do(command: Command, releases: Releases) -> None:
    file = releases.bundle(1)
    command("bundle", "verify", file).refused(1, "--fingerprint")
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    command("bundle", "verify", file, "--fingerprint", releases.fingerprint).refused(1, "step", "hint")
    told = command("bundle", "verify", file, "--fingerprint", releases.fingerprint, "--json").refused(1)
    assert told.json["verified"] is False
    assert told.json["error"]["code"] == "integrity"


def test_verify_counts_a_list_of_withdrawals_that_came_as_a_file(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    file, signed = releases.bundle(1), tmp_path / "withdrawn.json"
    given = ("--fingerprint", releases.fingerprint, "--withdrawals", signed)
    signed.write_bytes(releases.withdraw(7))
    assert command("bundle", "verify", file, *given).returncode == 0
    signed.write_bytes(releases.withdraw(1))
    command("bundle", "verify", file, *given).refused(1, "it was wrong")
    signed.write_bytes(Releases(tmp_path / "strangers").withdraw(1))
    assert "not trusted" in command("bundle", "verify", file, *given).stderr


def test_a_list_of_withdrawals_taken_in_as_a_file_stops_what_is_installed(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    signed = tmp_path / "withdrawn.json"
    signed.write_bytes(releases.withdraw(1))
    assert command("bundle", "withdrawals", signed).returncode == 1  # no key is trusted yet
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command("bundle", "card", "tiny-t2").returncode == 0
    assert "tiny-t2-1" in command("bundle", "withdrawals", signed).stdout
    assert "withdrawn: it was wrong" in command("bundle", "list").stdout
    assert "step 6" in command("bundle", "card", "tiny-t2").stderr
    told = command("bundle", "withdrawals", signed, "--json").json
    assert told == {"serial": 1, "withdrawn": 1, "installed_here": ["tiny-t2-1"]}
    assert command("bundle", "withdrawals", tmp_path / "none.json").returncode == 74


def test_verify_with_a_paper_asks_that_paper_alone(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    others = Releases(tmp_path / "others", now=releases.now)
    assert command("bundle", "verify", others.bundle(1, tier=3)).returncode == 1
    command("bundle", "verify", others.bundle(1, tier=3), "--fingerprint", others.fingerprint).done()
    assert (
        command("bundle", "verify", releases.bundle(1), "--fingerprint", others.fingerprint).returncode == 1
    )


def test_an_older_version_is_refused_at_the_command_line_too(
    command: Command, clinic: BundleStore, releases: Releases
) -> None:
    command("bundle", "install", releases.bundle(2), "--fingerprint", releases.fingerprint)
    for verb in ("install", "verify"):
        command("bundle", verb, releases.bundle(1)).refused(1, "step 7")
    assert [one.version for one in clinic.installed()] == [2]


def test_a_second_key_is_trusted_only_on_a_persons_word(
    command: Command, clinic: BundleStore, releases: Releases, tmp_path: Path
) -> None:
    others = Releases(tmp_path / "others", now=releases.now)
    file = others.bundle(1, tier=3)
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command("bundle", "install", file, "--trust-new-key").returncode == 2
    command("bundle", "install", file, "--fingerprint", others.fingerprint).refused(1, "--trust-new-key")
    command("bundle", "install", file, "--fingerprint", others.fingerprint, "--trust-new-key").done()
    assert len(clinic.trust.trusted()) == 2


def test_keys_are_listed_added_and_forgotten(command: Command, releases: Releases, tmp_path: Path) -> None:
    assert "No release key" in command("bundle", "trust").stdout
    assert releases.fingerprint in command("bundle", "trust", releases.fingerprint).stdout
    other = Releases(tmp_path / "other").fingerprint
    assert command("bundle", "trust", other).returncode == 1
    assert command("bundle", "trust", other, "--trust-new-key").returncode == 0
    assert len(command("bundle", "trust", "--json").json["keys"]) == 2
    assert command("bundle", "trust", releases.fingerprint, "--forget").returncode == 0
    assert releases.fingerprint not in command("bundle", "trust").stdout
    assert command("bundle", "trust", releases.fingerprint, "--forget").returncode == 1
    assert command("bundle", "trust", "--forget").returncode == 2
    assert command("bundle", "trust", "12:34").returncode == 78


def test_remove_asks_for_a_number_where_there_are_several(command: Command, releases: Releases) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    command("bundle", "install", releases.bundle(2))
    command("bundle", "remove", "tiny-t2").refused(2, "tiny-t2-1")
    assert command("bundle", "remove", "tiny-t2-1", "--json").json == {"removed": "tiny-t2-1"}
    assert "Removed tiny-t2-2" in command("bundle", "remove", "tiny-t2").stdout
    assert command("bundle", "remove", "tiny-t2").returncode == 1
    assert command("bundle", "remove", "../x").returncode == 2
    assert "No bundle is installed" in command("bundle", "list").stdout


def test_a_store_is_named_by_option_variable_or_configuration(
    command: Command, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = ("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command(*install, "--store", tmp_path / "one").returncode == 0
    monkeypatch.setenv("FEDMAP_BUNDLES", str(tmp_path / "two"))
    assert command(*install).returncode == 0
    monkeypatch.delenv("FEDMAP_BUNDLES")
    Path("site.toml").write_text(
        '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:1"\n'
    )
    assert command(*install).returncode == 0
    assert "bundle.installed" in Path("state/audit.jsonl").read_text()
    for folder in (tmp_path / "one", tmp_path / "two", Path("state/bundles")):
        assert [one.reference for one in BundleStore(folder).installed()] == ["tiny-t2-1"]
    assert command("bundle", "list", "--config", "elsewhere.toml").returncode == 78
    opened = Trusting(store=tmp_path / "one").bundle("tiny-t2")
    assert opened.manifest.version == 1


def test_a_clinic_in_the_container_needs_no_configuration_where_the_image_looks_for_one(
    command: Command, releases: Releases, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image sets FEDMAP_SITE_CONFIG; a clinic mounts nothing there."""
    monkeypatch.setattr(cli_options, "MOUNTED_CONFIG", home / "mounted" / "site.toml")
    monkeypatch.setenv("FEDMAP_SITE_CONFIG", str(home / "mounted" / "site.toml"))
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint).done()
    assert command("bundle", "list", "--json").json["store"] == str(home / "data" / "fedmap" / "bundles")
    assert command("doctor").returncode == 3  # what a hospital does needs one still


def test_a_configuration_that_is_there_and_cannot_be_read_is_not_taken_for_none(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = home / "site.toml"
    mounted.symlink_to(mounted)  # root may read everything else
    monkeypatch.setattr(cli_options, "MOUNTED_CONFIG", mounted)
    monkeypatch.setenv("FEDMAP_SITE_CONFIG", str(mounted))
    assert command("bundle", "list").returncode == 78


def test_an_account_without_a_home_is_asked_for_a_folder(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    command("bundle", "list").refused(1, "--store")


# A link


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.found()


@pytest.fixture
def page(tmp_path: Path, releases: Releases, federation: Federation) -> Iterator[tuple[str, Path]]:
    """A hospital's page of bundles and the file of its authority."""
    store = BundleStore(tmp_path / "hospital")
    store.install(releases.bundle(1, tier=3), releases.fingerprint, releases.now)
    store.accept_withdrawals(releases.withdraw(9, serial=2))
    authority = tmp_path / "hospital-ca.pem"
    authority.write_bytes(federation.authority.certificate_pem)
    catalogue = StoreCatalogue(store, ("127.0.0.0/8",), lambda: releases.now)
    with serving(make_bundle_app(catalogue, "A hospital"), federation) as server:
        yield f"https://localhost:{server.port}/", authority


def test_a_clinic_fetches_and_installs_from_a_hospitals_page(
    command: Command, clinic: BundleStore, releases: Releases, page: tuple[str, Path]
) -> None:
    link, authority = page
    command("bundle", "fetch", "tiny-t3", "--link", link, "--ca", authority).done("not verified")
    assert (clinic.downloads / "tiny-t3-1.fedmap").exists()
    command("bundle", "install", "tiny-t3", "--fingerprint", releases.fingerprint).done()
    assert not list(clinic.downloads.iterdir())
    again = command("bundle", "fetch", "--link", link, "--ca", authority, "--install", "--json").done()
    assert again.json["installed"] is True
    lists = clinic.trust.withdrawals()
    assert lists is not None
    assert lists.serial == 2


def test_a_page_that_lags_behind_in_its_withdrawals_is_told_and_changes_nothing(
    command: Command, clinic: BundleStore, releases: Releases, page: tuple[str, Path], tmp_path: Path
) -> None:
    link, authority = page
    clinic.pin_key(releases.fingerprint, "on paper", releases.now)
    clinic.accept_withdrawals(releases.withdraw(1, serial=5, name="tiny-t3"))
    command("bundle", "fetch", "--link", link, "--ca", authority, "--out", tmp_path / "out").refused(
        1, "note: the list of withdrawn bundles", "older", "must not be used", "step 6"
    )
    assert clinic.installed() == ()


def test_fetch_with_install_asks_for_the_paper_before_it_downloads(
    command: Command, clinic: BundleStore, page: tuple[str, Path]
) -> None:
    link, authority = page
    command("bundle", "fetch", "--link", link, "--ca", authority, "--install").refused(1, "--fingerprint")
    assert not clinic.downloads.exists()


def test_a_link_to_a_server_that_is_not_trusted_names_the_option(
    command: Command, page: tuple[str, Path]
) -> None:
    command("bundle", "fetch", "--link", page[0]).refused(1, "--ca FILE")


@pytest.mark.parametrize(
    "arguments",
    [
        ("fetch", "no/name"),
        ("fetch", "tiny-t2", "--ca", "site.toml"),
        ("fetch", "tiny-t2", "--proxy", "http://squid:3128"),
        ("install",),
        ("verify",),
    ],
)
def test_wrong_usage_ends_with_code_two(command: Command, arguments: tuple[str, ...]) -> None:
    Path("site.toml").write_text("")
    assert command("bundle", *arguments).returncode == 2


def test_fetch_without_a_link_needs_a_site(command: Command) -> None:
    command("bundle", "fetch", "tiny-t2").refused(78, "site.toml")


def test_install_by_name_without_a_fetched_file_says_so(command: Command) -> None:
    command("bundle", "install", "tiny-t2").refused(1, "bundle fetch tiny-t2")


# A site of the federation


@pytest.fixture
def aggregator(releases: Releases) -> Iterator[AggregatorDouble]:
    with AggregatorDouble() as double:
        double.release_key = releases.fingerprint
        double.bundles["tiny-t2", 1] = releases.bundle(1).read_bytes()
        double.signed_withdrawals = releases.withdraw(9)
        yield double


@pytest.fixture
def site(home: Path, aggregator: AggregatorDouble) -> BundleStore:
    """An enrolled site in the current folder."""
    (home / "site.toml").write_text(
        f'[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "{aggregator.address}"\n'
    )
    state = home / "state"
    state.mkdir()
    write_identity(state, aggregator.authority.site("a"))
    return BundleStore(state / "bundles", state / "audit.jsonl")


def test_a_site_fetches_what_the_federation_offers_and_learns_key_and_withdrawals(
    command: Command, site: BundleStore, aggregator: AggregatorDouble, releases: Releases
) -> None:
    assert "tiny-t2" in command("bundle", "fetch").stdout
    assert command("bundle", "fetch", "--json").json["offered"][0]["version"] == 1
    aggregator.cut_bundle_after = 5000
    command("bundle", "fetch", "tiny-t2").done("Next: fedmap-site bundle install tiny-t2")
    assert aggregator.bundle_offsets == [0, 5000]
    assert command("bundle", "install", "tiny-t2").returncode == 0
    (key,) = site.trust.trusted()
    assert key.source == "the aggregator, at first contact"
    assert site.trust.signed_list(releases.fingerprint) == aggregator.signed_withdrawals
    log = Path("state/audit.jsonl").read_text()
    for action in ("bundle.key_trusted", "bundle.withdrawals_received", "bundle.installed"):
        assert action in log


def test_a_changed_release_key_is_refused_with_a_hint_and_nothing_is_fetched(
    command: Command, site: BundleStore, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    assert command("bundle", "fetch", "tiny-t2", "--install").returncode == 0
    strangers = Releases(tmp_path / "strangers")
    aggregator.release_key = strangers.fingerprint
    aggregator.bundle_offsets.clear()
    command("bundle", "fetch", "tiny-t2").refused(1, "another release key", "--trust-new-key")
    assert aggregator.bundle_offsets == []
    assert len(site.trust.trusted()) == 1
    assert command("bundle", "card", "tiny-t2").returncode == 0


def test_an_older_list_of_withdrawals_from_the_aggregator_stops_the_fetch(
    command: Command, site: BundleStore, aggregator: AggregatorDouble, releases: Releases
) -> None:
    aggregator.signed_withdrawals = releases.withdraw(9, serial=5)
    assert command("bundle", "fetch", "tiny-t2").returncode == 0
    aggregator.signed_withdrawals = releases.withdraw(serial=4)
    command("bundle", "fetch", "tiny-t2").refused(1, "hiding")
    lists = site.trust.withdrawals()
    assert lists is not None
    assert lists.serial == 5


def test_enrolment_learns_the_release_key(
    command: Command, aggregator: AggregatorDouble, releases: Releases, tmp_path: Path
) -> None:
    joining = aggregator.authority.joining_file(tmp_path / "joining.pem")
    enrol = (
        *("enrol", "--joining", joining, "--token", "t", "--site", "a", "--address", aggregator.address),
        *("--ca-fingerprint", aggregator.authority.ca.fingerprint),
    )
    done = command(*enrol).done()
    assert releases.fingerprint in done.stdout
    assert releases.fingerprint in command("bundle", "trust").stdout
    aggregator.release_key = Releases(tmp_path / "strangers").fingerprint
    again = command(*enrol, "--again", "--json").done()
    assert again.json["release_key"] == ""
    assert "another release key" in again.stderr


# The hospital's own server, as a process

SITE = '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:1"\n'


def test_an_access_list_that_is_none_is_refused_with_every_fault_and_never_means_all(
    command: Command,
) -> None:
    Path("site.toml").write_text(SITE)
    Path("policy.toml").write_text("")
    command("serve-bundles").refused(78, "listen", "certificate", "bundles.serve.allow", "nobody")
    command("check-config").done("allow: (none)")
    Path("site.toml").write_text(SITE + '[bundles.serve]\nallow = ["10.1.0.0/99", "clinic"]\n')
    assert command("check-config").refused(78).stderr.count("10.1.0.0/16") == 2


def test_a_hospital_serves_and_a_clinic_fetches_until_the_hospital_stops(
    command: Command, clinic: BundleStore, releases: Releases, federation: Federation, tmp_path: Path
) -> None:
    hospital = tmp_path / "hospital"
    hospital.mkdir()
    certificate, key = federation.server_pair()
    pems = {"c.pem": certificate, "k.pem": key, "ca.pem": federation.authority.certificate_pem}
    for name, pem in pems.items():
        (hospital / name).write_bytes(pem)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = hospital / "site.toml"
    config.write_text(
        f'{SITE}[bundles.serve]\nlisten = "127.0.0.1:{port}"\ncertificate = "c.pem"\nkey = "k.pem"\n'
        'allow = ["127.0.0.1"]\n'
    )
    given = ("--fingerprint", releases.fingerprint)
    assert command("bundle", "install", releases.bundle(1), *given, "--config", config).returncode == 0
    process = subprocess.Popen(
        [sys.executable, *["-m", "fedmap_site.cli.main", "serve-bundles", "--json", "--config"], str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": ROOT},
    )
    try:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert (started["event"], started["port"], started["not_served"]) == ("serving", port, [])
        link = ("--link", f"https://localhost:{port}/", "--ca", hospital / "ca.pem")
        command("bundle", "fetch", *link, *given, "--install").done()
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=ENDS_WITHIN_SECONDS)
    assert process.returncode == 0, said
    assert [one.reference for one in clinic.installed()] == ["tiny-t2-1"]
    assert "bundle.served" in (hospital / "state" / "audit.jsonl").read_text()
    assert all(json.loads(line)["event"] for line in said.splitlines())
