from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import BaseModel

from fedmap.errors import ConfigError, FedmapError
from fedmap.process.settings import read_config
from fedmap.study.answer_names import WITHHELD
from fedmap.transport.status import error_classes
from fedmap_aggregator.cli.config_file import effective_settings, write_first_config
from fedmap_aggregator.config import AggregatorConfig

ROOT = Path(__file__).parents[2]
SHORT = ROOT / "deploy" / "aggregator" / "config.toml"
FULL = ROOT / "deploy" / "aggregator" / "config.full.toml"


def options() -> list[tuple[str, str]]:
    found = []
    for section, field in AggregatorConfig.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        found += [(section, key) for key in field.annotation.model_fields]
    return found


@pytest.mark.parametrize("path", [SHORT, FULL], ids=lambda path: path.name)
def test_a_shipped_configuration_is_accepted(path: Path) -> None:
    assert read_config(path, AggregatorConfig).server.address == "localhost:8443"


def test_the_short_configuration_is_short() -> None:
    settings = [line for line in SHORT.read_text().splitlines() if line and not line.startswith("#")]
    assert len(settings) <= 5


def test_the_full_configuration_has_every_option_and_no_other() -> None:
    raw = tomllib.loads(FULL.read_text())
    assert sorted(options()) == sorted((section, key) for section in raw for key in raw[section])


def test_the_full_configuration_shows_the_defaults() -> None:
    assert effective_settings(read_config(FULL, AggregatorConfig)) == effective_settings(
        read_config(SHORT, AggregatorConfig)
    )


def test_every_option_of_the_full_configuration_says_when_to_change_it() -> None:
    lines = FULL.read_text().splitlines()
    bare = [
        line
        for before, line in pairwise(lines)
        if line and line[0] not in "#[" and not before.startswith("#")
    ]
    assert not bare


def test_the_first_configuration_is_checked_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    with pytest.raises(ConfigError, match="host:port"):
        write_first_config(path, "no port", Path("state"))
    assert not path.exists()
    write_first_config(path, "fedmap.example.org:8443", Path("state"))
    read = read_config(path, AggregatorConfig)
    assert (read.server.address, read.server.state) == ("fedmap.example.org:8443", tmp_path / "state")


def test_an_address_of_downloads_that_are_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    path.write_text(SHORT.read_text() + '\n[downloads]\naddress = "models.example.org:443"\n')
    with pytest.raises(ConfigError, match="listen is not given"):
        read_config(path, AggregatorConfig)


def test_without_an_address_the_first_configuration_asks_for_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        write_first_config(tmp_path / "aggregator.toml", "", Path("state"))
    assert "--address" in refused.value.hint


def test_the_page_of_errors_explains_every_code() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    listed = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert listed == {*error_classes(), "files", WITHHELD}
    assert issubclass(error_classes()["fedmap"], FedmapError)


def test_the_page_of_errors_explains_every_exit_code() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    for code in (0, 1, 2, 3, 130):
        assert f"| {code} |" in text
