"""The operator's profile: one private file with all that it takes to call the aggregator from anywhere.

TOML with the address, the certificate authority to trust, the operator's certificate and key. It holds a
secret, so it is written for its owner alone and refused when others can read it. Nothing here dials out.
"""

from __future__ import annotations

import stat
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from fedmap.errors import ConfigError

_PEM = "-----BEGIN "


@dataclass(frozen=True)
class OperatorProfile:
    """Whom to call and as whom. PEM texts; `key` is secret and stays out of every printout."""

    name: str
    address: str
    ca: str
    certificate: str
    key: str
    proxy: str = ""
    """http://host:port to reach the address through; the environment's proxy settings are never used."""

    def __repr__(self) -> str:
        return f"OperatorProfile(name={self.name!r}, address={self.address!r})"


def profile_text(profile: OperatorProfile) -> str:
    """The file's text. Whoever writes it sets mode 600."""
    return (
        "# Operator profile of fedmap-aggregator. It holds a private key: keep it readable by you alone.\n"
        f'name = "{profile.name}"\n'
        f'address = "{profile.address}"\n'
        + (f'proxy = "{profile.proxy}"\n' if profile.proxy else "")
        + f'ca = """\n{profile.ca.strip()}\n"""\n'
        f'certificate = """\n{profile.certificate.strip()}\n"""\n'
        f'key = """\n{profile.key.strip()}\n"""\n'
    )


def read_profile(path: Path) -> OperatorProfile:
    """Reads and checks a profile; every fault at once."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(
                str(path),
                ("others on this machine can read it, and it holds a private key",),
                hint=f"run `chmod 600 {path}`; if someone else may have read it, revoke this operator",
            )
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            str(path),
            (f"the operator profile cannot be read: {error.strerror or 'it cannot be opened'}",),
            hint="give --profile (or FEDMAP_OPERATOR_PROFILE) the file that `fedmap-aggregator init` or "
            "`fedmap-aggregator operator add` wrote; `init` has not run yet if there is none, "
            "or your own PKI issues it (docs/operator.md, Operators)",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            str(path),
            ("it is not an operator profile (not valid TOML)",),
            hint="ask for a new one from `fedmap-aggregator operator add`",
        ) from error
    return _checked(raw, str(path))


def _checked(raw: dict[str, object], source: str) -> OperatorProfile:
    known = [field.name for field in fields(OperatorProfile)]
    wanted = [name for name in known if name != "proxy"]
    texts = {key: value.strip() for key, value in raw.items() if isinstance(value, str)}
    problems = [f"{key} is missing or is not a text" for key in wanted if not texts.get(key)]
    problems += [f"{key}: unknown key" for key in raw if key not in known]
    problems += [
        f"{key} is not in PEM form"
        for key in ("ca", "certificate", "key")
        if texts.get(key) and _PEM not in texts[key]
    ]
    host, _, port = texts.get("address", "").rpartition(":")
    if texts.get("address") and not (host and port.isdigit()):
        problems.append("address must be host:port")
    if problems:
        raise ConfigError(
            source,
            tuple(problems),
            hint="ask for a new profile from `fedmap-aggregator operator add`",
        )
    pem = {key: texts[key] + "\n" for key in ("ca", "certificate", "key")}
    return OperatorProfile(texts["name"], texts["address"], **pem, proxy=texts.get("proxy", ""))
