"""What a source root installs: a wheel of ours with which nothing else can collide, and little at a site."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from deploy.offline_kit.identity import ROLES, SITE
from deploy.offline_kit.wheels import own_wheels
from tests.deploy.kit_parts import KIT, ROOT, make_wheel

PACKAGES = {
    "common": "fedmap",
    "aggregator": "fedmap_aggregator",
    "site_agent": "fedmap_site",
    "lab": "fedmap_lab",
    "integrations/flower": "fedmap_flower",
}
OF_OTHERS = ("common", "aggregator", "site-agent", "lab", "integrations")
"""Names that public packages have, and our source roots too."""
MOST_LINES_AT_A_SITE = 28_800
"""Of Python that a hospital has to trust, without generated code. It only ever falls: 27,000 is the aim."""
GENERATED = ("*_pb2*.py", "fedmap/contract/v1/values.py")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By source root."""
    folder = tmp_path_factory.mktemp("wheels")
    own_wheels(ROOT, tuple(PACKAGES), folder, KIT.epoch)
    return {root: next(folder.glob(f"{package}-*.whl")) for root, package in PACKAGES.items()}


def python_of(wheel: Path) -> dict[str, str]:
    """Text by name, of everything but the wheel's own account of itself."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: archive.read(name).decode() for name in names}


def commands_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        texts = [archive.read(n).decode() for n in archive.namelist() if n.endswith("entry_points.txt")]
    return set(re.findall(r"^(\S+) =", "".join(texts), re.MULTILINE))


def test_a_wheel_claims_one_top_level_name_and_one_command_and_they_are_ours(wheels: dict[str, Path]) -> None:
    claimed = {root: {name.partition("/")[0] for name in python_of(wheel)} for root, wheel in wheels.items()}
    assert claimed == {root: {package} for root, package in PACKAGES.items()}
    for root, wheel in wheels.items():
        assert commands_of(wheel) == (set() if root == "common" else {PACKAGES[root].replace("_", "-")})
    for role in ROLES.values():
        assert [PACKAGES[root] for root in role.roots] == ["fedmap", role.program.replace("-", "_")]


def test_every_module_and_file_of_a_root_is_in_its_wheel_with_the_licence(wheels: dict[str, Path]) -> None:
    for root, wheel in wheels.items():
        files = [path for path in (ROOT / root / PACKAGES[root]).rglob("*") if path.is_file()]
        names = {path.relative_to(ROOT / root).as_posix() for path in files if path.suffix != ".pyc"}
        assert names == python_of(wheel).keys()
        with zipfile.ZipFile(wheel) as archive:
            (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_a_hospital_installs_a_small_program(wheels: dict[str, Path]) -> None:
    lines = sum(
        len(text.splitlines())
        for root in SITE.roots
        for name, text in python_of(wheels[root]).items()
        if name.endswith(".py") and not any(PurePosixPath(name).match(pattern) for pattern in GENERATED)
    )
    assert lines <= MOST_LINES_AT_A_SITE


def test_all_commands_run_beside_public_packages_with_the_names_of_our_folders(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    venv.create(home, with_pip=False)
    others = [make_wheel(tmp_path, name, content="theirs = True") for name in OF_OTHERS]
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(home / "bin" / "python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", *wheels.values(), *others], check=True)
    library = sysconfig.get_path("purelib", vars={"base": str(home)})
    Path(library, "dependencies.pth").write_text("\n".join(path for path in sys.path if "-packages" in path))
    names = [name.replace("-", "_") for name in OF_OTHERS]
    imports = f"import sys, {', '.join([*names, *PACKAGES.values()])}\n"
    files = f"print(*(sys.modules[n].__file__ for n in {[*names, *PACKAGES.values()]!r}), sep='\\n')"

    def said(program: str, *arguments: str) -> str:
        command = [str(home / "bin" / program), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    imported = said("python", "-c", imports + files).split()
    expected = [*(f"{name}.py" for name in names), *(f"{name}/__init__.py" for name in PACKAGES.values())]
    assert imported == [f"{library}/{name}" for name in expected]
    for command in set[str]().union(*map(commands_of, wheels.values())):
        assert f"Usage: {command}" in said(command, "--help")
