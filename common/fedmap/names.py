"""What sites, operators and studies may be called: names that are safe in paths, URIs and logs.

Whether a name exists or is taken is the store's business.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import StringConstraints

from fedmap.errors import RejectedError

SITE_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
STUDY_NAME = r"^[a-z0-9][a-z0-9-]*$"
MAX_STUDY_NAME = 63
MAX_REGION = 100

SiteName = Annotated[str, StringConstraints(pattern=SITE_NAME)]
"""For configuration files."""

_SITE = re.compile(SITE_NAME)
_STUDY = re.compile(STUDY_NAME)


def is_site_name(name: str) -> bool:
    """Whether a site could be called so. (`$` alone would let a line end pass.)"""
    return _SITE.fullmatch(name) is not None


def is_study_name(name: str) -> bool:
    """Whether a study could be called so."""
    return len(name) <= MAX_STUDY_NAME and _STUDY.fullmatch(name) is not None


def check_site_name(name: str) -> str:
    """The name, or `RejectedError`. The refused text is shown shortened and quoted: it may be hostile."""
    if not is_site_name(name):
        raise RejectedError(
            f"{shown(name)} is not a name for a site",
            hint="Use at most 63 lower-case letters, digits, - and _, starting with a letter or digit.",
        )
    return name


def check_operator_name(name: str) -> str:
    """Operators are named by the same rule as sites."""
    if not is_site_name(name):
        raise RejectedError(
            f"{shown(name)} is not a name for an operator",
            hint="Use at most 63 lower-case letters, digits, - and _, starting with a letter or digit.",
        )
    return name


def check_study_name(name: str) -> str:
    """The name, or `RejectedError`."""
    if not is_study_name(name):
        raise RejectedError(
            f"{shown(name)} is not a name for a study",
            hint=f"Use at most {MAX_STUDY_NAME} lower-case letters, digits and hyphens, such as uci-heart.",
        )
    return name


def check_region(region: str) -> str:
    """A region is free text for people, on one line; it may be empty."""
    if len(region) > MAX_REGION or not region.isprintable():
        raise RejectedError(
            f"{shown(region)} is not a region",
            hint=f"Use at most {MAX_REGION} printable characters on one line, or leave it empty.",
        )
    return region


def shown(text: str) -> str:
    """Foreign text made harmless for a message: quoted, escaped, at most 40 characters."""
    return ascii(text if len(text) <= 40 else text[:39] + "…")
