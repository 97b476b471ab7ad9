from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import ConfigError, StorageError
from fedmap.process.settings import parse_config
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.store import schema_status
from fedmap_aggregator.store.layout import database_url, make_store, open_store, state_lock


def config(folder: Path, more: str = "") -> AggregatorConfig:
    text = f'[server]\naddress = "localhost:8443"\nstate = "state"\n{more}'
    return parse_config(text, "test", folder, AggregatorConfig)


def test_without_a_url_the_database_is_in_the_state_folder(tmp_path: Path) -> None:
    assert database_url(config(tmp_path)) == f"sqlite:///{tmp_path}/state/fedmap.db"


def test_a_url_with_a_password_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://kim:secret@db/fedmap\n")
    assert database_url(config(tmp_path, '[database]\nurl_file = "url"\n')).endswith("secret@db/fedmap")


@pytest.mark.parametrize("text", ["", "postgresql://kim:secret@db/fedmap\nmore\n"])
def test_a_url_file_with_another_number_of_lines_is_refused_without_quoting_it(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "url").write_text(text)
    with pytest.raises(ConfigError) as refused:
        database_url(config(tmp_path, '[database]\nurl_file = "url"\n'))
    assert "secret" not in str(refused.value)


def test_a_store_before_init_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as refused:
        make_store(config(tmp_path))
    assert "init" in refused.value.hint


def test_a_command_makes_the_tables_only_where_no_service_holds_the_folder(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.server.state.mkdir()
    with state_lock(settings), pytest.raises(StorageError, match="another process"), open_store(settings):
        pytest.fail("the store was opened beside a service that had not made its tables")
    with open_store(settings):
        assert schema_status(database_url(settings)).state == "current"
    with state_lock(settings), open_store(settings) as store, store.reading() as transaction:
        assert transaction.sites.list() == ()
