"""The model that a command was given, by --bundle or by --model: verified, not expired, not withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.errors import StateError
from fedmap_site.cli.bundles.shelf import now_ms, open_bundle, open_store
from fedmap_site.cli.output import say

if TYPE_CHECKING:
    from fedmap_site.predict.rows import ReadyModel

BundleOption = Annotated[
    str | None, typer.Option("--bundle", help="A file, or NAME or NAME-VERSION of an installed bundle.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder of a personal model, as `fedmap-site personalise` wrote it."),
]
DataOption = Annotated[
    Path,
    typer.Option(
        "--data", exists=True, dir_okay=False, readable=True, help="Patients' file (CSV or Parquet)."
    ),
]


def ready_model(
    bundle: str | None, model: Path | None, store: Path | None, fingerprint: str, config: Path
) -> ReadyModel:
    """The one that was given; giving both or neither is wrong usage."""
    if (bundle is None) == (model is None):
        raise typer.BadParameter("give either --bundle or --model")
    if bundle is not None:
        from fedmap_site.predict.rows import shared_model

        return shared_model(open_bundle(bundle, store, fingerprint, config))
    assert model is not None
    from fedmap_site.personalise.model import load_personal

    ready = load_personal(model)
    ready.refuse_if_expired(now_ms())
    bundle_name, _, version = ready.name.rpartition("-")
    known = open_store(store, config).trust.withdrawals()
    withdrawn = None if known is None else known.find(bundle_name, int(version))
    if withdrawn is not None:
        raise StateError(
            f"the bundle behind this model was withdrawn: {ready.name} ({withdrawn.reason})",
            hint="Install the newest bundle of the study and fine-tune again.",
        )
    return ready


@contextmanager
def progress(words: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, told the share that is done; nothing elsewhere."""
    if not say.is_terminal:
        yield lambda _share: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=say, transient=True) as bar:
        task = bar.add_task(words, total=1.0)
        yield lambda share: bar.update(task, completed=share)
