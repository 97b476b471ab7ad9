from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import ConfigError, FedmapError
from fedmap.process.settings import read_config
from fedmap.study.answer_names import WITHHELD
from fedmap.transport.status import error_classes
from fedmap_aggregator.cli.config_file import write_first_config
from fedmap_aggregator.config import AggregatorConfig

ROOT = Path(__file__).parents[2]
SHORT = ROOT / "deploy" / "aggregator" / "config.toml"


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
