"""Configuration files: every problem at once, in plain words, and nothing repaired."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pytest
from annotated_types import Ge, Gt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from fedmap.errors import ConfigError
from fedmap.names import SiteName
from fedmap.process.settings import OptionalPath, Section, parse_config, read_config
from tests import plans


class Retry(Section):
    attempts: int = 3


class Server(Section):
    former_keys: ClassVar[Mapping[str, str]] = {"host": "`address`, with the port"}
    address: str
    state: Path = Path("state")
    site: SiteName = "a"
    reflection: bool = False
    days: Annotated[float, Gt(0)] = 90.0
    retry: Retry = Retry()


class Limits(Section):
    calls: Annotated[int, Ge(1)] = 8
    low: int = 0
    high: int = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class Data(Section):
    files: dict[str, Path] = Field(default_factory=dict)
    extra: tuple[Path, ...] = ()
    bundle: OptionalPath = None


class Config(Section):
    server: Server
    limits: Limits = Limits()
    data: Data = Data()
    level: Literal["debug", "info"] = "info"

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.server.reflection and self.level == "info":
            raise ValueError("reflection is for debugging only")
        return self


GOOD = '[server]\naddress = "localhost:8443"\n'


def problems(text: str, folder: Path = Path("/srv")) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "config.toml", folder, Config)
    assert "config.toml" in caught.value.message
    assert caught.value.hint
    return caught.value.problems


def outcome(text: str) -> Config | ConfigError:
    try:
        return parse_config(text, "c", Path("/srv"), Config)
    except ConfigError as error:
        return error


def test_a_short_file_gives_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(GOOD)
    config = read_config(tmp_path / "config.toml", Config)
    assert config.server.address == "localhost:8443"
    assert config.limits == Limits()


def test_relative_paths_start_at_the_file_and_not_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "config.toml").write_text(
        GOOD + 'state = "var"\n[data]\nfiles = { heart = "heart.csv", full = "/data/full.csv" }\n'
        'extra = ["../x"]\nbundle = "ca.pem"\n'
    )
    monkeypatch.chdir(tmp_path)
    config = read_config(Path("etc/config.toml"), Config)
    assert config.server.state == tmp_path / "etc" / "var"
    assert config.data.files == {"heart": tmp_path / "etc" / "heart.csv", "full": Path("/data/full.csv")}
    assert config.data.extra == (tmp_path / "etc" / ".." / "x",)
    assert config.data.bundle == tmp_path / "etc" / "ca.pem"


def test_a_default_path_starts_at_the_file_too_and_an_optional_one_may_be_empty(tmp_path: Path) -> None:
    config = parse_config(GOOD + '[data]\nbundle = ""\n', "c", tmp_path, Config)
    assert config.server.state == tmp_path / "state"
    assert config.data.bundle is None


def test_every_problem_is_reported_at_once() -> None:
    found = problems(
        'level = "loud"\nsevrer = 1\n[server]\nadress = "x"\nstate = 3\ndays = 0\nsite = "A b"\n'
        'reflection = "no"\n[server.retry]\natempts = 2\n[limits]\ncalls = 0\n[data]\nfiles = { a = 1 }\n'
    )
    text = "\n".join(found)
    for piece in (
        "level: must be 'debug' or 'info'",
        "sevrer: unknown key, did you mean `server`?",
        "server.address: is missing",
        "server.adress: unknown key, did you mean `address`?",
        "server.state:",
        "server.days: must be greater than 0",
        "server.site: must be at most 63 lower-case",
        "server.reflection: must be true or false",
        "server.retry.atempts: unknown key, did you mean `attempts`?",
        "limits.calls: must be at least 1",
        "data.files.a:",
    ):
        assert piece in text
    assert len(found) == 11


DATE = "server.address: must not be a date or a time; put it in quotes"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (GOOD + 'state = "~/state"\n', "server.state: `~`"),
        (GOOD + 'host = "x"\n', "server.host: old key: it is now `address`, with the port"),
        (GOOD + "calls = 2\n", "server.calls: unknown key here; there is `calls` under [limits]"),
        ("attempts = 2\n" + GOOD, "attempts: unknown key here; there is `attempts` under [server.retry]"),
        (GOOD + "zebra = 2\n", "server.zebra: unknown key"),
        (GOOD + '[limits]\ncalls = "8"\n', "limits.calls: must be a whole number"),
        *((GOOD + f"days = {value}\n", "server.days: must be") for value in ("nan", "inf", "-inf")),
        ("[server]\naddress = 2024-01-01\n", DATE),
        ("[server]\naddress = 10:00:00\n", DATE),
        ("[server]\naddress = 2024-01-01T10:00:00Z\n", DATE),
        (GOOD + "[limits]\nlow = 2\n", "limits: low must not be above high"),
        (GOOD + "reflection = true\n", "reflection is for debugging only"),
        ("server = 3\n", "server: must be a table of keys and values"),
        ("", "server: is missing"),
        ("[server\n", "not valid TOML: Expected ']' at the end of a table declaration (at line 1"),
    ],
)
def test_what_is_wrong_is_said_without_jargon_and_nothing_is_repaired(text: str, problem: str) -> None:
    (found,) = problems(text)
    assert found.startswith(problem)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "missing", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(ConfigError, match=words):
            read_config(path, Config)
    for path, hint in ((tmp_path / "missing", "make it"), (tmp_path, "Check the path")):
        with pytest.raises(ConfigError) as refused:
            read_config(path, Config, if_missing="make it")
        assert refused.value.hint.startswith(hint)
    (tmp_path / "latin").write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_config(tmp_path / "latin", Config)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert read_config(tmp_path / "config.toml", Config).server.reflection is False


@given(st.text(max_size=200))
def test_no_text_gives_anything_but_a_config_or_a_config_error(text: str) -> None:
    read = outcome(text)
    assert isinstance(read, Config) or read.problems


LEAF = st.one_of(st.integers(-(2**70), 2**70), st.booleans(), st.text(max_size=5), st.floats(allow_nan=False))
TABLE = st.dictionaries(st.sampled_from(["address", "state", "days", "calls", "low", "files", "odd"]), LEAF)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["server", "limits", "data", "level", "other"]), st.one_of(LEAF, TABLE))
)
def test_any_tree_of_values_is_read_or_refused_in_words(tree: dict[str, object]) -> None:
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    tables = [plans.toml_table(f"[{key}]", one) for key, one in tree.items() if isinstance(one, dict)]
    text = "\n".join([plans.toml_table("", plain), *tables])
    read = outcome(text)
    if isinstance(read, Config):
        assert read.server.state.is_absolute()
    else:
        assert read.problems
        assert all("Input should be" not in problem for problem in read.problems)
