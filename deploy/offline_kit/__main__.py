"""`python -m deploy.offline_kit build | name | check`: makes an offline kit, names it, or looks at one.

Exit codes: 0 done; 1 an error with its hint, or a damaged kit; 2 wrong usage.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.offline_kit import check_kit
from deploy.offline_kit.identity import ROLES, Identity, identify
from deploy.offline_kit.image import save_image
from deploy.offline_kit.staging import stage, write_archive
from deploy.offline_kit.wheels import check_pins, fetch_dependencies, own_wheels, read_wheelhouse
from fedmap.errors import ConfigError, FedmapError

PROJECT = Path(__file__).resolve().parents[2]
say = Console(stderr=True)
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Whose = Annotated[str, typer.Option("--role", help=f"Whose kit: {', '.join(ROLES)}.")]


@app.command("build")
def build_command(
    role: Whose = "site",
    out: Annotated[Path, typer.Option(help="Folder for the archive.")] = Path("dist"),
    engine: Annotated[str, typer.Option(help="The container engine that has the image.")] = "podman",
    image: Annotated[str, typer.Option(help="The image; default: the role's, tagged with the version.")] = "",
) -> None:
    """Fetch, save, check and pack: one archive, its digest beside it. This needs a network; the kit none."""
    kit, constraints = _kit_of(role), PROJECT / "constraints.txt"
    archive = out / f"{kit.name}.tar"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".kit-") as scratch:
        saved, wheels, folder = (Path(scratch) / name for name in ("image.tar", "wheels", kit.name))
        save_image(engine, image or f"{kit.role.program}:{kit.version}", saved)
        say.print("fetching wheels", highlight=False)
        own_wheels(PROJECT, kit.role.roots, wheels, kit.epoch)
        fetch_dependencies(wheels, kit.role.distribution, constraints)
        check_pins(read_wheelhouse(wheels), constraints)
        say.print("packing", highlight=False)
        stage(kit, wheels, saved, folder)
        digest = write_archive(folder, archive, kit.epoch)
    typer.echo(f"{archive}  {archive.stat().st_size / 1e6:.0f} MB\nSHA-256 {digest}")


@app.command("name")
def name_command(role: Whose = "site") -> None:
    """Print the name of the archive that `build` would write."""
    typer.echo(f"{_kit_of(role).name}.tar")


@app.command("check")
def check_command(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="An unpacked kit.")],
) -> None:
    """Is an unpacked kit whole? The same as check_kit.py inside it."""
    raise typer.Exit(check_kit.main([str(folder)]))


def _kit_of(role: str) -> Identity:
    if role not in ROLES:
        raise ConfigError("--role", (f"there is no kit for {role}",), hint=f"Take one of {', '.join(ROLES)}.")
    return identify(ROLES[role], PROJECT)


def main() -> None:
    """Errors become one plain message and exit code 1."""
    try:
        app()
    except FedmapError as error:
        say.print(f"error ({error.code}): {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
