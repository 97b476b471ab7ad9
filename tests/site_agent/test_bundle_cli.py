"""`fedmap-site bundle …` and `serve-bundles` from the outside: a clinic with a paper, a site, a hospital."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedmap.web.bundle_app import make_bundle_app
from fedmap_site.bundles import download as bundle_download
from fedmap_site.bundles.server import StoreCatalogue
from fedmap_site.bundles.store import BundleStore
from fedmap_site.cli import main as cli
from fedmap_site.cli.bundles import options as cli_bundles
from fedmap_site.cli.bundles.options import Trusting
from fedmap_site.identity.files import write_identity
from tests.common.web.serving import Federation, serving
from tests.site_agent.bundle_shelf import Releases, entries_of
from tests.site_agent.federation_double import AggregatorDouble

ENDS_WITHIN_SECONDS = 60
ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Ran]


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

    def run(*arguments: str | Path) -> Ran:
        monkeypatch.setattr(sys, "argv", ["fedmap-site", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, said.out, said.err)

    return run


@pytest.fixture
def clinic(home: Path) -> BundleStore:
    """Where a clinic without a configuration keeps its bundles."""
    return BundleStore(home / "data" / "fedmap" / "bundles")


# A clinic with a file and a paper


def test_a_clinic_verifies_installs_lists_and_reads_with_a_file_and_a_paper(
    command: Command, clinic: BundleStore, releases: Releases
) -> None:
    file = releases.bundle(1, tier=3)
    verified = command("bundle", "verify", file, "--fingerprint", releases.fingerprint)
    assert verified.code == 0, verified.err
    for number in range(1, 10):
        assert f"({number})" in verified.out
    assert "may be used" in verified.out
    assert not clinic.folder.exists()  # verifying changes nothing

    installed = command("bundle", "install", file, "--fingerprint", releases.fingerprint.lower())
    assert installed.code == 0, installed.err
    assert "Installed tiny-t3 version 1" in installed.out
    assert "tiny-t3" in command("bundle", "list").out
    (listed,) = command("bundle", "list", "--json").json["bundles"]
    assert (listed["name"], listed["state"]) == ("tiny-t3", "ready")
    assert "# " in command("bundle", "card", "tiny-t3").out
    assert command("bundle", "card", "tiny-t3", "--json").json["version"] == 1
    assert [entry.action for entry in entries_of(clinic)] == ["bundle.key_trusted", "bundle.installed"]


def test_the_card_and_its_picture_are_written_as_files(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    written = command("bundle", "card", "tiny-t2-1", "--out", tmp_path / "card")
    assert written.code == 0, written.err
    assert {path.name for path in (tmp_path / "card").iterdir()} == {"card.md", "calibration.svg"}


def test_verify_says_which_step_failed_and_what_to_do(command: Command, releases: Releases) -> None:
    file = releases.bundle(1)
    no_key = command("bundle", "verify", file)
    assert no_key.code == 1
    assert "--fingerprint" in no_key.err
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes(data)
    broken = command("bundle", "verify", file, "--fingerprint", releases.fingerprint)
    assert broken.code == 1
    assert "step" in broken.err
    assert "hint" in broken.err
    told = command("bundle", "verify", file, "--fingerprint", releases.fingerprint, "--json")
    assert told.code == 1
    assert told.json["verified"] is False
    assert told.json["error"]["code"] == "integrity"


def test_verify_counts_a_list_of_withdrawals_that_came_as_a_file(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    file, signed = releases.bundle(1), tmp_path / "withdrawn.json"
    given = ("--fingerprint", releases.fingerprint, "--withdrawals", signed)
    signed.write_bytes(releases.withdraw(7))
    assert command("bundle", "verify", file, *given).code == 0
    signed.write_bytes(releases.withdraw(1))
    refused = command("bundle", "verify", file, *given)
    assert refused.code == 1
    assert "it was wrong" in refused.err
    signed.write_bytes(Releases(tmp_path / "strangers").withdraw(1))
    assert "not trusted" in command("bundle", "verify", file, *given).err


def test_a_list_of_withdrawals_taken_in_as_a_file_stops_what_is_installed(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    signed = tmp_path / "withdrawn.json"
    signed.write_bytes(releases.withdraw(1))
    assert command("bundle", "withdrawals", signed).code == 1  # no key is trusted yet
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command("bundle", "card", "tiny-t2").code == 0
    assert "tiny-t2-1" in command("bundle", "withdrawals", signed).out
    assert "withdrawn: it was wrong" in command("bundle", "list").out
    assert "step 6" in command("bundle", "card", "tiny-t2").err
    told = command("bundle", "withdrawals", signed, "--json").json
    assert told == {"serial": 1, "withdrawn": 1, "installed_here": ["tiny-t2-1"]}
    assert command("bundle", "withdrawals", tmp_path / "none.json").code == 74


def test_verify_with_a_paper_asks_that_paper_alone(
    command: Command, releases: Releases, tmp_path: Path
) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    others = Releases(tmp_path / "others", now=releases.now)
    assert command("bundle", "verify", others.bundle(1, tier=3)).code == 1
    given = command("bundle", "verify", others.bundle(1, tier=3), "--fingerprint", others.fingerprint)
    assert given.code == 0, given.err
    assert command("bundle", "verify", releases.bundle(1), "--fingerprint", others.fingerprint).code == 1


def test_an_older_version_is_refused_at_the_command_line_too(
    command: Command, clinic: BundleStore, releases: Releases
) -> None:
    command("bundle", "install", releases.bundle(2), "--fingerprint", releases.fingerprint)
    for verb in ("install", "verify"):
        refused = command("bundle", verb, releases.bundle(1))
        assert refused.code == 1
        assert "step 7" in refused.err
    assert [one.version for one in clinic.installed()] == [2]


def test_a_second_key_is_trusted_only_on_a_persons_word(
    command: Command, clinic: BundleStore, releases: Releases, tmp_path: Path
) -> None:
    others = Releases(tmp_path / "others", now=releases.now)
    file = others.bundle(1, tier=3)
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command("bundle", "install", file, "--trust-new-key").code == 2
    refused = command("bundle", "install", file, "--fingerprint", others.fingerprint)
    assert refused.code == 1
    assert "--trust-new-key" in refused.err
    done = command("bundle", "install", file, "--fingerprint", others.fingerprint, "--trust-new-key")
    assert done.code == 0, done.err
    assert len(clinic.trust.trusted()) == 2


def test_keys_are_listed_added_and_forgotten(command: Command, releases: Releases, tmp_path: Path) -> None:
    assert "No release key" in command("bundle", "trust").out
    assert releases.fingerprint in command("bundle", "trust", releases.fingerprint).out
    other = Releases(tmp_path / "other").fingerprint
    assert command("bundle", "trust", other).code == 1
    assert command("bundle", "trust", other, "--trust-new-key").code == 0
    assert len(command("bundle", "trust", "--json").json["keys"]) == 2
    assert command("bundle", "trust", releases.fingerprint, "--forget").code == 0
    assert releases.fingerprint not in command("bundle", "trust").out
    assert command("bundle", "trust", releases.fingerprint, "--forget").code == 1
    assert command("bundle", "trust", "--forget").code == 2
    assert command("bundle", "trust", "12:34").code == 78


def test_remove_asks_for_a_number_where_there_are_several(command: Command, releases: Releases) -> None:
    command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    command("bundle", "install", releases.bundle(2))
    several = command("bundle", "remove", "tiny-t2")
    assert several.code == 2
    assert "tiny-t2-1" in several.err
    assert command("bundle", "remove", "tiny-t2-1", "--json").json == {"removed": "tiny-t2-1"}
    assert "Removed tiny-t2-2" in command("bundle", "remove", "tiny-t2").out
    assert command("bundle", "remove", "tiny-t2").code == 1
    assert command("bundle", "remove", "../x").code == 2
    assert "No bundle is installed" in command("bundle", "list").out


def test_a_store_is_named_by_option_variable_or_configuration(
    command: Command, releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = ("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert command(*install, "--store", tmp_path / "one").code == 0
    monkeypatch.setenv("FEDMAP_BUNDLES", str(tmp_path / "two"))
    assert command(*install).code == 0
    monkeypatch.delenv("FEDMAP_BUNDLES")
    Path("site.toml").write_text(
        '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:1"\n'
    )
    assert command(*install).code == 0
    assert "bundle.installed" in Path("state/audit.jsonl").read_text()
    for folder in (tmp_path / "one", tmp_path / "two", Path("state/bundles")):
        assert [one.reference for one in BundleStore(folder).installed()] == ["tiny-t2-1"]
    assert command("bundle", "list", "--config", "elsewhere.toml").code == 78
    opened = Trusting(store=tmp_path / "one").bundle("tiny-t2")
    assert opened.manifest.version == 1


def test_a_clinic_in_the_container_needs_no_configuration_where_the_image_looks_for_one(
    command: Command, releases: Releases, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image sets FEDMAP_SITE_CONFIG; a clinic mounts nothing there."""
    monkeypatch.setattr(cli_bundles, "MOUNTED_CONFIG", home / "mounted" / "site.toml")
    monkeypatch.setenv("FEDMAP_SITE_CONFIG", str(home / "mounted" / "site.toml"))
    installed = command("bundle", "install", releases.bundle(1), "--fingerprint", releases.fingerprint)
    assert installed.code == 0, installed.err
    assert command("bundle", "list", "--json").json["store"] == str(home / "data" / "fedmap" / "bundles")
    assert command("doctor").code == 3  # what a hospital does needs one still


def test_a_configuration_that_is_there_and_cannot_be_read_is_not_taken_for_none(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = home / "site.toml"
    mounted.symlink_to(mounted)  # root may read everything else
    monkeypatch.setattr(cli_bundles, "MOUNTED_CONFIG", mounted)
    monkeypatch.setenv("FEDMAP_SITE_CONFIG", str(mounted))
    assert command("bundle", "list").code == 78


def test_an_account_without_a_home_is_asked_for_a_folder(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    told = command("bundle", "list")
    assert told.code == 1
    assert "--store" in told.err


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
    fetched = command("bundle", "fetch", "tiny-t3", "--link", link, "--ca", authority)
    assert fetched.code == 0, fetched.err
    assert "not verified" in fetched.out
    assert (clinic.downloads / "tiny-t3-1.fedmap").exists()
    installed = command("bundle", "install", "tiny-t3", "--fingerprint", releases.fingerprint)
    assert installed.code == 0, installed.err
    assert not list(clinic.downloads.iterdir())
    again = command("bundle", "fetch", "--link", link, "--ca", authority, "--install", "--json")
    assert again.code == 0, again.err
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
    refused = command("bundle", "fetch", "--link", link, "--ca", authority, "--out", tmp_path / "out")
    assert refused.code == 1
    assert "note: the list of withdrawn bundles" in refused.err
    assert "older" in refused.err
    assert "must not be used" in refused.err
    assert "step 6" in refused.err
    assert clinic.installed() == ()


def test_fetch_with_install_asks_for_the_paper_before_it_downloads(
    command: Command, clinic: BundleStore, page: tuple[str, Path]
) -> None:
    link, authority = page
    refused = command("bundle", "fetch", "--link", link, "--ca", authority, "--install")
    assert refused.code == 1
    assert "--fingerprint" in refused.err
    assert not clinic.downloads.exists()


def test_a_link_to_a_server_that_is_not_trusted_names_the_option(
    command: Command, page: tuple[str, Path]
) -> None:
    refused = command("bundle", "fetch", "--link", page[0])
    assert refused.code == 1
    assert "--ca FILE" in refused.err


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
    assert command("bundle", *arguments).code == 2


def test_fetch_without_a_link_needs_a_site(command: Command) -> None:
    refused = command("bundle", "fetch", "tiny-t2")
    assert refused.code == 78
    assert "site.toml" in refused.err


def test_install_by_name_without_a_fetched_file_says_so(command: Command) -> None:
    refused = command("bundle", "install", "tiny-t2")
    assert refused.code == 1
    assert "bundle fetch tiny-t2" in refused.err


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
    assert "tiny-t2" in command("bundle", "fetch").out
    assert command("bundle", "fetch", "--json").json["offered"][0]["version"] == 1
    aggregator.cut_bundle_after = 5000
    fetched = command("bundle", "fetch", "tiny-t2")
    assert fetched.code == 0, fetched.err
    assert "Next: fedmap-site bundle install tiny-t2" in fetched.out
    assert aggregator.bundle_offsets == [0, 5000]
    assert command("bundle", "install", "tiny-t2").code == 0
    (key,) = site.trust.trusted()
    assert key.source == "the aggregator, at first contact"
    assert site.trust.signed_list(releases.fingerprint) == aggregator.signed_withdrawals
    log = Path("state/audit.jsonl").read_text()
    for action in ("bundle.key_trusted", "bundle.withdrawals_received", "bundle.installed"):
        assert action in log


def test_a_changed_release_key_is_refused_with_a_hint_and_nothing_is_fetched(
    command: Command, site: BundleStore, aggregator: AggregatorDouble, tmp_path: Path
) -> None:
    assert command("bundle", "fetch", "tiny-t2", "--install").code == 0
    strangers = Releases(tmp_path / "strangers")
    aggregator.release_key = strangers.fingerprint
    aggregator.bundle_offsets.clear()
    refused = command("bundle", "fetch", "tiny-t2")
    assert refused.code == 1
    assert "another release key" in refused.err
    assert "--trust-new-key" in refused.err
    assert aggregator.bundle_offsets == []
    assert len(site.trust.trusted()) == 1
    assert command("bundle", "card", "tiny-t2").code == 0


def test_an_older_list_of_withdrawals_from_the_aggregator_stops_the_fetch(
    command: Command, site: BundleStore, aggregator: AggregatorDouble, releases: Releases
) -> None:
    aggregator.signed_withdrawals = releases.withdraw(9, serial=5)
    assert command("bundle", "fetch", "tiny-t2").code == 0
    aggregator.signed_withdrawals = releases.withdraw(serial=4)
    refused = command("bundle", "fetch", "tiny-t2")
    assert refused.code == 1
    assert "hiding" in refused.err
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
    done = command(*enrol)
    assert done.code == 0, done.err
    assert releases.fingerprint in done.out
    assert releases.fingerprint in command("bundle", "trust").out
    aggregator.release_key = Releases(tmp_path / "strangers").fingerprint
    again = command(*enrol, "--again", "--json")
    assert again.code == 0, again.err
    assert again.json["release_key"] == ""
    assert "another release key" in again.err


# The hospital's own server, as a process

SITE = '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:1"\n'


def test_serve_bundles_without_an_access_list_is_refused_with_every_fault(command: Command) -> None:
    Path("site.toml").write_text(SITE)
    refused = command("serve-bundles")
    assert refused.code == 78
    for part in ("listen", "certificate", "bundles.serve.allow", "nobody"):
        assert part in refused.err


def test_a_network_that_is_none_is_refused_in_the_configuration(command: Command) -> None:
    Path("site.toml").write_text(SITE + '[bundles.serve]\nallow = ["10.1.0.0/99", "clinic"]\n')
    refused = command("check-config")
    assert refused.code == 78
    assert refused.err.count("10.1.0.0/16") == 2


def test_an_empty_access_list_is_not_shown_as_all(command: Command) -> None:
    Path("site.toml").write_text(SITE)
    Path("policy.toml").write_text("")
    shown = command("check-config")
    assert shown.code == 0, shown.err
    assert "allow: (none)" in shown.out


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
    assert command("bundle", "install", releases.bundle(1), *given, "--config", config).code == 0
    arguments = [
        sys.executable,
        "-m",
        "fedmap_site.cli.main",
        "serve-bundles",
        "--json",
        "--config",
        str(config),
    ]
    process = subprocess.Popen(
        arguments,
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
        fetched = command("bundle", "fetch", *link, *given, "--install")
        assert fetched.code == 0, fetched.err
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=ENDS_WITHIN_SECONDS)
    assert process.returncode == 0, said
    assert [one.reference for one in clinic.installed()] == ["tiny-t2-1"]
    assert "bundle.served" in (hospital / "state" / "audit.jsonl").read_text()
    assert all(json.loads(line)["event"] for line in said.splitlines())
