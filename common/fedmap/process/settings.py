"""From a TOML file to the frozen model of a service's settings, with every problem in one `ConfigError`.

Unknown keys are refused with the nearest spelling, their new name or their section. Relative paths are taken
from the folder of the file, not from where a program happens to be started. Nothing is repaired, and no
default hides a misspelt key. Secrets are never in the file: only paths to them.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fedmap.errors import ConfigError
from fedmap.files.access import let_in, refused_to
from fedmap.process.addresses import HostPortOrOff
from fedmap.process.problems import UNKNOWN_KEY, Fault, faults_of, path_of

_HINT = "Correct each line above in the file, then run `check-config`."
_Keys = tuple[str | int, ...]


class Section(BaseModel):
    """Frozen, strict about types, no unknown keys, no infinities. The base of every configuration model."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    former_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions → what they are called now: said to the person, never obeyed."""


OptionalPath = Annotated[Path | None, BeforeValidator(lambda value: None if value == "" else value)]
"""A path that may be left out or be the empty text; both are None."""


class LogSection(Section):
    """JSON lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class MetricsSection(Section):
    """/metrics, /healthz and /readyz over plain HTTP; off unless an address is given."""

    listen: HostPortOrOff = ""


Model = TypeVar("Model", bound=BaseModel)


def read_config(path: Path, model: type[Model], if_missing: str = "") -> Model:
    """Reads and checks a configuration file; `if_missing` is the hint where there is no such file."""
    source = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason, hint = _refusal(error, path, if_missing)
        raise ConfigError(source, (f"cannot be read: {reason}",), hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError(source, ("is not UTF-8 text",), hint="Save it as a UTF-8 text file.") from error
    return parse_config(text, source, path.absolute().parent, model)


def _refusal(error: OSError, path: Path, if_missing: str) -> tuple[str, str]:
    reason = (error.strerror or "it cannot be opened").lower()
    if isinstance(error, PermissionError):
        return f"{reason}: {refused_to(path)}", let_in(path)
    if isinstance(error, FileNotFoundError) and if_missing:
        return reason, f"{if_missing} Where it should be on a mounted folder: is that mounted?"
    return reason, "Check the path and the permissions of the file."


def parse_config(text: str, source: str, folder: Path, model: type[Model]) -> Model:
    """Checks a configuration text; `source` names it in errors, `folder` is where relative paths start."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            source,
            (f"not valid TOML: {error}",),
            hint="Correct the line named above; nothing else was checked.",
        ) from error
    dates = [
        Fault(path_of("", keys), "must not be a date or a time; put it in quotes") for keys in _dates(raw, ())
    ]
    reported = {fault.path for fault in dates}
    faults = dates + [fault for fault in _faults(model, raw, "") if fault.path not in reported]
    faults = [_placed(fault, model) for fault in faults]
    if not faults:
        read = model.model_validate_json(json.dumps(raw), strict=True)
        anchored = _anchored(read, folder, (), faults)
        if not faults and isinstance(anchored, model):
            return anchored
    raise ConfigError(source, tuple(_line(fault) for fault in faults), hint=_HINT)


def _faults(model: type[BaseModel], raw: Mapping[str, object], prefix: str) -> list[Fault]:
    """Every fault of one table. Tables inside it are asked on their own, so that each knows its own keys."""
    tables = {key: kind for key, kind in _tables(model) if isinstance(raw.get(key), dict)}
    inside = tuple(path_of(prefix, (key,)) for key in tables)
    faults: list[Fault] = []
    try:
        # JSON mode lets lists stand for tuples and texts for paths; a date has been refused already.
        model.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        faults = [
            fault
            for fault in faults_of(error, prefix, tuple(model.model_fields))
            if not _within(fault, inside)
        ]
    for key, kind in tables.items():
        table = raw[key]
        if isinstance(table, dict):
            faults += _faults(kind, table, path_of(prefix, (key,)))
    return faults


def _placed(fault: Fault, model: type[BaseModel]) -> Fault:
    """Says more of an unknown key: what it is called now, or which section knows it."""
    if not fault.text.startswith(UNKNOWN_KEY):
        return fault
    section, _, key = fault.path.rpartition(".")
    sections = dict(_all_tables(model, ""))
    kind = sections.get(section)
    if kind is not None and issubclass(kind, Section) and key in kind.former_keys:
        return Fault(fault.path, f"old key: it is now {kind.former_keys[key]}")
    homes = [name for name, table in sections.items() if name and key in table.model_fields]
    if homes and fault.text == UNKNOWN_KEY:
        return Fault(fault.path, f"{UNKNOWN_KEY} here; there is `{key}` under [{'] and ['.join(homes)}]")
    return fault


def _all_tables(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield prefix, model
    for name, kind in _tables(model):
        yield from _all_tables(kind, path_of(prefix, (name,)))


def _tables(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield name, kind


def _within(fault: Fault, paths: tuple[str, ...]) -> bool:
    return any(fault.path == path or fault.path.startswith((f"{path}.", f"{path}[")) for path in paths)


def _dates(value: object, keys: _Keys) -> Iterator[_Keys]:
    """Where TOML says a date or a time, which no setting is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _dates(inner, (*keys, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _dates(inner, (*keys, position))
    elif isinstance(value, datetime.date | datetime.time):
        yield keys


def _anchored(value: object, folder: Path, keys: _Keys, faults: list[Fault]) -> object:
    """The same value with every path in it made absolute."""
    if isinstance(value, Path):
        if value.parts and value.parts[0].startswith("~"):
            faults.append(Fault(path_of("", keys), "`~` is not understood here; write the full path"))
        return folder / value
    if isinstance(value, BaseModel):
        update = {
            name: _anchored(getattr(value, name), folder, (*keys, name), faults)
            for name in type(value).model_fields
        }
        return value.model_copy(update=update)
    if isinstance(value, dict):
        return {key: _anchored(inner, folder, (*keys, key), faults) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_anchored(inner, folder, (*keys, place), faults) for place, inner in enumerate(value))
    return value


def _line(fault: Fault) -> str:
    """A fault of the whole file has no path; what a validator of ours says needs no preamble."""
    text = fault.text.removeprefix("Value error, ")
    return f"{fault.path}: {text}" if fault.path else text
