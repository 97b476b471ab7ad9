"""`fedmap-site serve`: rows as JSON over real TLS, refusals that quote nothing, and the process itself."""

from __future__ import annotations

import csv
import http.client
import json
import os
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmap.errors import ConfigError, DataError, StateError
from fedmap_site.predict.rows import ReadyModel, shared_model
from fedmap_site.predict.server import LIMITS, make_prediction_app, token_of
from fedmap_site.predict.service import MOST_ROWS, PredictionService, parse_request
from fedmap_site.predict.table import PredictOptions, predict_file
from tests.common.web.serving import Answer, Federation, serving
from tests.site_agent.tier_bundles import IDENTIFIER, ROOT, Columns, Kind, patients, trained, write_table

NOW = 1_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def federation() -> Federation:
    return Federation.found()


def ready_of(home: Path, kind: Kind = "binary", *, scaling: str = "pooled") -> ReadyModel:
    made = trained(home, kind, kind == "binary", scaling)
    folder = home / f"{kind}-{scaling}"
    folder.mkdir(exist_ok=True)
    return shared_model(made.verified(made.bundle(folder, 3)))


class Client:
    """Asks one server, with the token unless told otherwise."""

    def __init__(self, port: int, context: ssl.SSLContext, token: str) -> None:
        self._port, self._context, self._token = port, context, token

    def get(self, path: str, token: str | None = None) -> Answer:
        return self._ask("GET", path, self._headers(token))

    def post(self, form: Any, token: str | None = None, **headers: str) -> Answer:
        body = form if isinstance(form, bytes) else json.dumps(form).encode()
        given = {"Content-Type": "application/json", **self._headers(token), **headers}
        return self._ask("POST", "/v1/predict", given, body)

    def _headers(self, token: str | None) -> dict[str, str]:
        given = self._token if token is None else token
        return {"Authorization": f"Bearer {given}"} if given else {}

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Answer:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=30)
        with closing(connection):
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())


@pytest.fixture(scope="module")
def client(home: Path, federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    token, _ = token_of(folder / "token")
    service = PredictionService(ready_of(home), lambda: NOW)
    with serving(make_prediction_app(service, token, "0.1.0"), federation, LIMITS) as server:
        yield Client(server.port, federation.client(folder), (folder / "token").read_text().strip())


def records(people: Columns, rows: int) -> list[dict[str, Any]]:
    wanted = [name for name in people if name not in ("event", "grade", "years", "happened")]
    return [{name: people[name][row].item() for name in wanted} for row in range(rows)]


def test_predictions_are_those_of_the_same_rows_in_a_file(home: Path, client: Client, tmp_path: Path) -> None:
    people = patients(200, 4)
    answer = client.post({"rows": records(people, 200)})
    assert answer.status == 200
    form = json.loads(answer.body)
    assert (form["model"], form["rows"], form["skipped"]) == ("clinic-t3-1", 200, 0)
    predict_file(
        ready_of(home),
        write_table(tmp_path / "clinic.csv", people),
        tmp_path / "out.csv",
        PredictOptions(check_shift=False),
        lambda _done: None,
    )
    with (tmp_path / "out.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    found = [(p["row"], p["class"]) for p in form["predictions"]]
    assert found == [(int(line["row"]), line["class"]) for line in lines]
    wanted = [float(line["probability"]) for line in lines]
    np.testing.assert_allclose([p["probability"] for p in form["predictions"]], wanted, atol=1e-6)
    assert answer.headers["cache-control"] == "no-store"


def test_survival_and_several_classes_answer_in_their_own_words(home: Path) -> None:
    rows = json.dumps({"rows": records(patients(3, 4), 3)}).encode()
    survival = PredictionService(ready_of(home, "cox"), lambda: NOW).predict(rows)["predictions"]
    assert [set(one) for one in survival] == [{"row", "risk", "log_hazard"}] * 3
    several = PredictionService(ready_of(home, "multiclass"), lambda: NOW).predict(rows)["predictions"]
    assert sum(several[0][f"probability_{name}"] for name in "abc") == pytest.approx(1.0)
    assert several[0]["class"] in "abc"


def test_bad_rows_are_refused_by_column_and_count_and_never_quoted(client: Client) -> None:
    rows = records(patients(5, 4), 5)
    rows[1]["age"] = f"{IDENTIFIER} years"
    rows[2]["sbp"] *= 10
    rows[3]["smoking"] = IDENTIFIER
    answer = client.post({"rows": rows})
    assert answer.status == 422
    form = json.loads(answer.body)
    assert form["code"] == "data"
    assert form["problems"] == [
        "3 of 5 rows cannot be predicted",
        "age: 1 of 5 values are not numbers",
        "sbp: 1 of 5 values lie outside 60 to 260 mmHg: check the unit",
        "smoking: 1 of 5 values are not among the categories no, former, current",
    ]
    assert IDENTIFIER not in answer.text
    skipped = json.loads(client.post({"rows": rows, "skip_bad_rows": True}).body)
    assert skipped["skipped"] == 3
    assert skipped["predictions"][1] == {"row": 2, "reason": "age: not a number"}
    assert "probability" in skipped["predictions"][4]


def test_rows_that_are_all_bad_get_reasons_where_they_may_be_skipped(client: Client) -> None:
    (row,) = records(patients(1, 4), 1)
    answer = client.post({"rows": [row | {"age": None}], "skip_bad_rows": True})
    assert json.loads(answer.body)["predictions"] == [{"row": 1, "reason": "age: missing"}]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"rows": []}',
        b'{"rows": {}}',
        b'{"rows": [1]}',
        b'{"rows": [{}], "skip_bad_rows": 1}',
        b'{"rows": [{}], "more": 1}',
        b'{"rows": [{"age": [61]}]}',
        b'{"rows": [{"age": NaN}]}',
        b'{"rows": [{"age": 1, "age": 2}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_body_of_another_form_is_refused(client: Client, body: bytes) -> None:
    answer = client.post(body)
    assert answer.status == 422
    assert set(json.loads(answer.body)) == {"code", "message", "hint", "problems"}


def test_a_row_that_leaves_columns_out_is_told_which(client: Client) -> None:
    answer = client.post({"rows": [{"age": 61, "patient": IDENTIFIER}]})
    assert answer.status == 422
    assert "sbp: 1 of 1 rows do not name it" in json.loads(answer.body)["problems"]
    assert IDENTIFIER not in answer.text


def test_more_rows_than_the_limit_are_refused(client: Client) -> None:
    answer = client.post({"rows": [{}] * (MOST_ROWS + 1)})
    assert (answer.status, json.loads(answer.body)["code"]) == (413, "limit")


def test_who_does_not_know_the_token_gets_no_answer(client: Client) -> None:
    rows = {"rows": records(patients(1, 4), 1)}
    for token in ("", "wrong", "Bearer", "ä" * 43):
        answer = client.post(rows, token=token.encode().decode("latin-1"))
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("/v1/model", token="").status == 401
    assert client.post(rows, Authorization=f"Basic {IDENTIFIER}").status == 401


def test_another_content_type_method_or_path_is_refused_in_json(client: Client) -> None:
    assert client.post({"rows": []}, **{"Content-Type": "text/plain"}).status == 415
    assert client.get("/v1/predict").status == 405
    answer = client.get("/v2/predict")
    assert (answer.status, json.loads(answer.body)["code"]) == (404, "not_found")


def test_the_model_is_described_for_programs(client: Client) -> None:
    form = json.loads(client.get("/v1/model").body)
    assert form["outputs"] == ["probability", "class"]
    assert form["columns"][1] == {
        "name": "sbp",
        "kind": "number",
        "unit": "mmHg",
        "range": [60.0, 260.0],
        "missing": "refuse",
        "fill": None,
    }
    assert [column["name"] for column in form["columns"]][-3:] == ["drug_a", "drug_b", "drug_c"]
    schema = json.loads(client.get("/openapi.json", token="").body)
    row = schema["components"]["schemas"]["Row"]
    assert row["required"] == [column["name"] for column in form["columns"]]
    pressure = {"type": "number", "minimum": 60.0, "maximum": 260.0}
    assert row["properties"]["sbp"]["anyOf"] == [pressure, {"type": "null"}]
    assert row["properties"]["sbp"]["description"] == "In mmHg."
    for reference in _references(schema):
        name = reference.removeprefix("#/components/schemas/")
        assert name in schema["components"]["schemas"]


def _references(form: Any) -> Iterator[str]:
    if isinstance(form, dict):
        for name, value in form.items():
            if name == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(form, list):
        for value in form:
            yield from _references(value)


def test_the_page_needs_nothing_from_elsewhere(client: Client) -> None:
    answer = client.get("/", token="")
    assert answer.status == 200
    assert "<script" not in answer.text
    assert "http" not in answer.text.replace("https://HOST:PORT", "")
    for words in ("A clinic&#39;s risk", "mmHg", "60 to 260", "no, former, current", "Tests only."):
        assert words in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get("/style.css", token="").status == 200
    assert client.get("/healthz", token="").text == "ok\n"


def test_a_model_that_expires_while_it_is_served_stops_answering(home: Path) -> None:
    ready = replace(ready_of(home), expires_unix_ms=NOW)
    clock = [NOW - 1]
    service = PredictionService(ready, lambda: clock[0])
    body = json.dumps({"rows": records(patients(1, 4), 1)}).encode()
    assert service.predict(body)["rows"] == 1
    clock[0] = NOW
    with pytest.raises(StateError, match="expired"):
        service.predict(body)


def test_a_study_that_scales_by_whole_files_cannot_be_served_row_by_row(home: Path) -> None:
    with pytest.raises(StateError):
        PredictionService(ready_of(home, scaling="local"), lambda: NOW)


def test_a_token_is_made_for_its_owner_only_and_a_careless_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token, made = token_of(path)
    assert made
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    word = path.read_text().strip()
    assert token.admits(f"Bearer {word}")
    assert token.admits(f"bearer {word}")
    assert not token.admits(word)
    assert not token.admits(f"Bearer {word}x")
    assert word not in repr(token)
    assert token_of(path)[1] is False
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others than its owner"):
        token_of(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="one word"):
        token_of(path)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rows", "age", "x"]), inner),
    max_leaves=8,
).map(lambda form: json.dumps(form).encode()))  # fmt: skip
def test_any_body_is_rows_or_a_typed_refusal(body: bytes) -> None:
    try:
        rows, skip = parse_request(body)
    except DataError:
        pass
    else:
        assert rows
        assert not skip


def test_the_process_serves_logs_no_row_and_ends_on_a_signal(
    home: Path, federation: Federation, tmp_path: Path
) -> None:
    made = trained(home, "binary", True)
    bundle = made.bundle(tmp_path, 3)
    for name, content in zip(("server.pem", "server.key"), federation.server_pair(), strict=True):
        (tmp_path / name).write_bytes(content)
    command = [
        *(sys.executable, "-m", "fedmap_site.cli.main", "serve", "--json", "--listen", "127.0.0.1:0"),
        *("--bundle", bundle.name, "--fingerprint", made.fingerprint, "--store", "store"),
        *("--certificate", "server.pem", "--key", "server.key", "--token-file", "token"),
    ]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1].strip() != "}":
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            lines.append(line)
        told = json.loads("".join(lines))
        token = (tmp_path / "token").read_text().strip()
        client = Client(told["port"], federation.client(tmp_path), token)
        rows = records(patients(20, 4), 20)
        answer = client.post({"rows": rows})
        assert (answer.status, len(json.loads(answer.body)["predictions"])) == (200, 20)
        rows[3]["age"] = IDENTIFIER
        assert client.post({"rows": rows}).status == 422
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in logged.splitlines()].count("web_answer") == 2
    assert IDENTIFIER not in logged
    assert token not in logged
