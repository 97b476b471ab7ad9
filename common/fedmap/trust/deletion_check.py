"""`deletion verify` of both services: who signed a certificate of deletion, and is every byte theirs?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedmap.process.command_line import Given
    from fedmap.trust.deletion import Trust

Certificate = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A certificate of deletion.")]
Fingerprint = Annotated[
    str, typer.Option(help="Of the release key, from paper. Default: what is known here.")
]
Authority = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Of a site's certificate: the federation's ca.pem."),
]


def tell_deletion(
    given: Given, file: Path, fingerprint: str, ca: Path | None, known: Callable[[], Trust]
) -> None:
    """What the certificate says; `known` is asked for what was not given."""
    from fedmap.files.durable import read_file
    from fedmap.trust.deletion import Trust, deletion_lines, read_deletion

    own = Trust() if fingerprint and ca else known()
    fingerprints = {fingerprint} if fingerprint else own.fingerprints
    trust = Trust(fingerprints, read_file(ca) if ca else own.authority)
    record, signer = read_deletion(read_file(file), trust)
    lines = deletion_lines(file.name, record, signer)
    given.tell({"signed_by": signer, **record.model_dump(mode="json")}, *lines)
