"""The offline kit, made from tiny parts: what is in it, that its bytes do not change, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import fedmap_aggregator.cli.main
import fedmap_site.cli.main
from deploy.offline_kit.bill import faults_of
from deploy.offline_kit.identity import ROLES, Role
from deploy.offline_kit.image import read_image, save_image
from deploy.offline_kit.staging import write_archive, write_sums
from deploy.offline_kit.wheels import check_pins, dependency_graph, platform_tags, read_wheelhouse
from fedmap.errors import ConfigError, IntegrityError
from tests.deploy.kit_parts import KIT, ROOT, make_image, make_kit, make_wheel, make_wheels, usual_layers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked kit. Tests that change it take a copy."""
    return make_kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture
def kit(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / whole.name)


def ran(command: Sequence[str | Path], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def check(kit: Path) -> subprocess.CompletedProcess[str]:
    """The program inside the kit, with no library but Python's own."""
    return ran([sys.executable, "-I", "-S", kit / "check_kit.py"])


def bill(kit: Path, name: str) -> dict[str, Any]:
    text = (kit / "sbom" / name).read_text()
    assert faults_of(text) == []
    found: dict[str, Any] = json.loads(text)
    assert found["specVersion"] == "1.6"
    return found


def test_a_kit_that_arrived_whole_is_said_to_be(kit: Path) -> None:
    done = check(kit)
    assert done.returncode == 0, done.stderr
    assert "The kit is whole" in done.stdout
    assert ran(["sha256sum", "--check", "--quiet", "SHA256SUMS"], kit).returncode == 0


def _cut_image(kit: Path) -> None:
    (image,) = (kit / "image").iterdir()
    image.write_bytes(image.read_bytes()[:-1])


def _swap_for_link(kit: Path) -> None:
    (kit / "LICENSE").rename(kit.parent / "LICENSE")
    (kit / "LICENSE").symlink_to(kit.parent / "LICENSE")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda kit: (kit / "config/policy.toml").write_text('egress = "automatic"'), "policy.toml: changed"),
        (lambda kit: (kit / "requirements.txt").unlink(), "requirements.txt: missing"),
        (lambda kit: make_wheel(kit / "wheelhouse", "torch", "99"), "torch-99-py3-none-any.whl: not in"),
        (lambda kit: (kit / "SHA256SUMS").unlink(), "SHA256SUMS: missing"),
        (lambda kit: (kit / "SHA256SUMS").write_text(""), "names no file"),
        (lambda kit: (kit / "SHA256SUMS").write_text("no digest\n"), "line 1 cannot be used"),
        (lambda kit: (kit / "SHA256SUMS").write_text(f"{'0' * 64}  ../outside\n"), "../outside: missing"),
        (_cut_image, "fedmap-site-0.1.0.tar.gz: changed"),
        (_swap_for_link, "LICENSE: not a plain file"),
        (lambda kit: (kit / "more").symlink_to(kit.parent), "more: not in SHA256SUMS"),
    ],
)
def test_a_damaged_kit_is_refused_with_the_file_that_is_wrong(
    kit: Path, damage: Callable[[Path], object], named: str
) -> None:
    damage(kit)
    done = check(kit)
    assert done.returncode == 1
    assert named in done.stderr
    assert "Do not install it" in done.stderr


@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [("python", "3.99", "CPython 3.99"), ("machine", "s390x", "s390x"), ("glibc", "9.0", "glibc 9.0")],
)
def test_a_machine_that_the_wheels_do_not_fit_is_sent_to_the_container(
    kit: Path, fact: str, value: str, said: str
) -> None:
    facts = json.loads((kit / "kit.json").read_text())
    (kit / "kit.json").write_text(json.dumps(facts | {fact: value}))
    write_sums(kit)
    done = check(kit)
    assert done.returncode == 0
    assert said in done.stdout
    assert "Use the container" in done.stdout


def test_the_same_parts_give_the_same_archive_and_nothing_of_the_machine_that_made_it(tmp_path: Path) -> None:
    digests = set()
    for place, mode in (("first", 0o700), ("second", 0o755)):
        (tmp_path / place).mkdir(mode=mode)
        archive = tmp_path / place / "kit.tar"
        digests.add(write_archive(make_kit(tmp_path / place), archive, KIT.epoch))
    (digest,) = digests
    assert archive.with_name("kit.tar.sha256").read_text() == f"{digest}  kit.tar\n"
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
        tar.extractall(tmp_path, filter="data")
    assert {entry.name.split("/")[0] for entry in entries} == {KIT.name}
    assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries} == {(0, 0, "", "", KIT.epoch)}
    assert check(tmp_path / KIT.name).returncode == 0


def test_the_bill_of_the_wheels_names_version_licence_digest_and_who_needs_whom(kit: Path) -> None:
    found = bill(kit, "wheels.cdx.json")
    own = found["metadata"]["component"]
    assert (own["name"], own["type"]) == ("fedmap-site", "application")
    assert own["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    parts = {part["name"]: part for part in found["components"]}
    assert parts.keys() == {"fedmap", "table-reader", "small-part"}
    assert parts["small-part"]["purl"] == "pkg:pypi/small-part@2.0%2Bcpu"
    assert parts["table-reader"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    named = {entry["license"]["name"] for entry in parts["small-part"]["licenses"]}
    assert named == {"MIT License", "Public Domain"}
    (digest,) = parts["small-part"]["hashes"]
    assert digest["content"] in (kit / "requirements.txt").read_text()
    needs = {line["ref"]: line.get("dependsOn", []) for line in found["dependencies"]}
    assert needs["pkg:pypi/fedmap-site@0.1.0"] == ["pkg:pypi/fedmap@0.1.0"]
    assert needs["pkg:pypi/fedmap@0.1.0"] == ["pkg:pypi/table-reader@1.0"]
    assert needs["pkg:pypi/table-reader@1.0"] == ["pkg:pypi/small-part@2.0%2Bcpu"]


def test_the_bill_of_the_image_leaves_out_what_a_later_layer_took_away(kit: Path) -> None:
    found = bill(kit, "image.cdx.json")
    assert found["metadata"]["component"]["type"] == "container"
    parts = {part["purl"]: part for part in found["components"]}
    debian = "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12"
    python = {f"pkg:pypi/{part}" for part in ("fedmap@0.1.0", "part@1.0", "part@2.0")}
    assert parts.keys() == {debian} | python
    licences = [entry["license"] for entry in parts[debian]["licenses"]]
    assert {one.get("id") or one["name"] for one in licences} == {"MIT", "LGPL-2.1+"}


def test_the_image_in_the_kit_is_the_archive_that_was_saved(kit: Path) -> None:
    facts = json.loads((kit / "kit.json").read_text())
    unpacked = kit.parent / "image.tar"
    unpacked.write_bytes(gzip.decompress((kit / facts["image"]["file"]).read_bytes()))
    assert read_image(unpacked).identity == facts["image"]["id"]


def test_pip_installs_the_wheels_by_their_digests_and_refuses_an_exchanged_one(
    kit: Path, tmp_path: Path
) -> None:
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--find-links", "wheelhouse", "--require-hashes", "-r", "requirements.txt", "--target"]
    done = ran([*pip, tmp_path / "ok"], kit)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ok" / "small_part.py").is_file()
    make_wheel(kit / "wheelhouse", "small-part", "2.0+cpu", content="stolen = True")
    done = ran([*pip, tmp_path / "no"], kit)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "no").exists()


def test_an_image_built_from_another_revision_than_the_wheels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"built from revision f+, the wheels from 0+"):
        make_kit(tmp_path, revision="f" * 40)


def test_every_licence_text_of_a_wheel_is_in_the_kit(kit: Path) -> None:
    text = (kit / "licences" / "table-reader-1.0" / "LICENSE__old_").read_text()
    assert text == "the licence of table-reader"
    assert "| table-reader | 1.0 | BSD-3-Clause | 1 |" in (kit / "licences" / "README.md").read_text()


def test_a_wheel_that_is_not_pinned_or_of_a_graphics_card_stops_the_kit(tmp_path: Path) -> None:
    folder = make_wheels(tmp_path / "wheels")
    make_wheel(folder, "nvidia-cublas", "13.0")
    pins = tmp_path / "constraints.txt"
    pins.write_text("# pins\ntable_reader==2.0  # another\n")
    with pytest.raises(ConfigError) as caught:
        check_pins(read_wheelhouse(folder), pins)
    assert caught.value.problems == (
        "nvidia_cublas-13.0-py3-none-any.whl belongs to the CUDA build of torch",
        "small-part 2.0+cpu is not pinned",
        "table-reader 1.0 is not the pinned table_reader==2.0",
    )
    pins.write_text("table-reader==1.0\nsmall-part==2.0\nnvidia-cublas==13.0\n")
    (folder / "nvidia_cublas-13.0-py3-none-any.whl").unlink()
    check_pins(read_wheelhouse(folder), pins)


def test_a_wheelhouse_that_would_not_install_is_found_before_it_is_packed(tmp_path: Path) -> None:
    folder = make_wheels(tmp_path / "wheels")
    (folder / "small_part-2.0+cpu-py3-none-any.whl").unlink()
    make_wheel(folder, "stranger")
    with pytest.raises(ConfigError) as caught:
        dependency_graph(read_wheelhouse(folder), "fedmap-site")
    assert caught.value.problems == (
        "stranger is needed by nobody",
        "table-reader needs Small.Part, which is not there",
    )


def test_a_broken_wheel_or_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn-1.0-py3-none-any.whl").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(IntegrityError, match=r"torn-1\.0-py3-none-any\.whl: not a whole wheel"):
        read_wheelhouse(tmp_path)
    image = make_image(tmp_path / "image.tar", *usual_layers())
    image.write_bytes(image.read_bytes()[:3000])
    with pytest.raises(IntegrityError, match="not a whole image archive"):
        read_image(image)


def test_an_engine_that_is_not_installed_is_named_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-such-engine is not installed"):
        save_image("no-such-engine", "fedmap-site:0.1.0", tmp_path / "image.tar")


def test_wheels_are_chosen_for_the_oldest_c_library_not_for_the_building_machine() -> None:
    tags = platform_tags("x86_64")
    assert tags[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_5_x86_64"} <= set(tags)


@pytest.mark.parametrize("role", ROLES.values(), ids=list(ROLES))
def test_the_instructions_name_commands_that_exist_and_the_files_are_in_the_project(role: Role) -> None:
    text = (ROOT / "deploy" / "offline_kit" / f"INSTALL.{role.name}.md").read_text()
    app = {"site": fedmap_site.cli.main.app, "aggregator": fedmap_aggregator.cli.main.app}[role.name]
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    named = set(re.findall(rf"(?:bin/{role.program}|@image.reference@|--rm agent) ([a-z][a-z-]+)", text))
    assert {"doctor"} <= named <= root.commands.keys()
    for origin in role.files.values():
        assert (ROOT / origin).is_file(), origin


def test_the_instructions_are_filled_in_and_name_files_that_are_there(kit: Path) -> None:
    text = (kit / "INSTALL.md").read_text()
    assert "@" not in text
    assert json.loads((kit / "kit.json").read_text())["image"]["file"] in text
    for name in ("requirements.txt", "check_kit.py", "SHA256SUMS", "config/site.toml", "config/policy.toml"):
        assert name in text
        assert (kit / name).is_file()
