"""The log filter: only listed fields pass, at every level, by every way; a planted identifier never does."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest
import structlog

from fedmap.errors import ConfigError, StorageError
from fedmap.process.log import ALLOWED_FIELDS, configure, get_logger

PLANTED = "NHS-943-476-5919"
ROOT = Path(__file__).resolve().parents[2]


def lines(logged: io.StringIO) -> list[dict[str, object]]:
    assert PLANTED not in logged.getvalue()
    return [json.loads(line) for line in logged.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(logged: io.StringIO) -> None:
    get_logger().info("answer_accepted", study="heart", site="a", round=3, seconds=0.5, accepted=True)
    (line,) = lines(logged)
    timestamp = line.pop("timestamp")
    assert isinstance(timestamp, str)
    assert timestamp.endswith("Z")
    assert line == {
        "service": "site",
        "event": "answer_accepted",
        "level": "info",
        "study": "heart",
        "site": "a",
        "round": 3,
        "seconds": 0.5,
        "accepted": True,
    }


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_a_field_that_is_not_listed_is_dropped_and_named_at_every_level(
    logged: io.StringIO, level: str
) -> None:
    getattr(get_logger(), level)("row_read", patient=PLANTED, study="heart")
    (line,) = lines(logged)
    assert line["dropped_fields"] == ["patient"]
    assert line["study"] == "heart"


NO_PLAIN_VALUES = ([PLANTED], {"a": PLANTED}, (PLANTED,), object(), b"x", PLANTED + "x" * 300, Path(PLANTED))


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        *(({"study": value}, ["study"]) for value in NO_PLAIN_VALUES),
        ({PLANTED: 1}, ["?"]),
        # a caller cannot pass off a message as an error or a place
        (dict.fromkeys(("error", "where", "dropped_fields"), PLANTED), ["dropped_fields", "error", "where"]),
    ],
)
def test_what_is_no_short_plain_value_of_a_listed_field_is_dropped(
    logged: io.StringIO, fields: dict[str, object], dropped: list[str]
) -> None:
    get_logger().warning("odd_value", **fields)
    (line,) = lines(logged)
    assert line["dropped_fields"] == dropped


def test_an_event_with_values_in_its_text_loses_the_text(logged: io.StringIO) -> None:
    get_logger().warning(f"bad row of {PLANTED}")
    get_logger().warning("bad row of %s", PLANTED)
    assert [line["event"] for line in lines(logged)] == ["unnamed_event", "unnamed_event"]


def test_bound_and_context_fields_pass_the_same_filter(logged: io.StringIO) -> None:
    structlog.contextvars.bind_contextvars(rpc="Approve", patient=PLANTED)
    get_logger().bind(age=PLANTED, caller="a").info("called")
    (line,) = lines(logged)
    assert (line["rpc"], line["caller"]) == ("Approve", "a")
    assert line["dropped_fields"] == ["age", "patient"]


def test_an_exception_gives_types_and_places_but_no_message(logged: io.StringIO) -> None:
    def failing(patient: str) -> None:
        try:
            raise OSError(28, patient)
        except OSError as error:
            raise StorageError(patient, hint=patient) from error

    try:
        failing(PLANTED)
    except StorageError:
        get_logger().exception("store_failed", study="heart")
    (line,) = lines(logged)
    assert line["error"] == "StorageError < OSError"
    assert (line["code"], line["os_error"]) == ("storage", "ENOSPC")


def test_the_places_are_those_of_our_own_code(logged: io.StringIO) -> None:
    try:
        configure("loud")
    except ConfigError as error:
        get_logger().error("start_failed", exc_info=error)
    (line,) = lines(logged)
    assert isinstance(line["where"], list)
    (place,) = line["where"]
    assert place.startswith("fedmap.process.log:")


def test_a_loop_of_causes_ends(logged: io.StringIO) -> None:
    first, second = ValueError(PLANTED), KeyError(PLANTED)
    first.__cause__, second.__cause__ = second, first
    get_logger().error("failed", exc_info=first)
    (line,) = lines(logged)
    assert line["error"] == "ValueError < KeyError"


def test_libraries_are_heard_from_warning_on_without_their_text(logged: io.StringIO) -> None:
    library = logging.getLogger("pandas.io")
    library.info("read %s", PLANTED)
    library.warning("cannot parse %s", PLANTED)
    try:
        raise ValueError(PLANTED)
    except ValueError:
        library.exception("failed on %s", PLANTED)
    first, second = lines(logged)
    assert (first["event"], first["logger"], first["level"]) == ("library_message", "pandas.io", "warning")
    assert (second["level"], second["error"]) == ("error", "ValueError")


def test_a_python_warning_is_logged_without_its_text(logged: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)
        logging.captureWarnings(True)
        warnings.warn(f"mixed types near {PLANTED}", stacklevel=1)
        logging.captureWarnings(False)
    (line,) = lines(logged)
    assert line["logger"] == "py.warnings"


def test_a_crashing_thread_is_logged_without_its_message(logged: io.StringIO) -> None:
    def crash() -> None:
        raise ValueError(PLANTED)

    thread = threading.Thread(target=crash, name="heartbeat")
    thread.start()
    thread.join()
    (line,) = lines(logged)
    assert (line["event"], line["thread"], line["error"]) == ("thread_failed", "heartbeat", "ValueError")


def test_a_crashing_program_says_so_without_its_message() -> None:
    code = f"import fedmap.process.log; fedmap.process.log.configure('debug'); raise ValueError('{PLANTED}')"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.returncode == 1
    assert PLANTED not in ended.stdout + ended.stderr
    assert json.loads(ended.stderr)["error"] == "ValueError"


def test_before_configure_nothing_is_said_below_warning_and_nothing_unfiltered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    get_logger().info("early")
    get_logger().warning("early_warning", patient=PLANTED)
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["dropped_fields"] == ["patient"]


def test_the_level_is_kept_and_an_unknown_one_refused(logged: io.StringIO) -> None:
    configure("error", logged)
    get_logger().warning("quiet")
    assert lines(logged) == []
    with pytest.raises(ConfigError, match="debug, info, warning, error"):
        configure("loud", logged)


def test_passwords_are_not_written_and_numbers_that_json_does_not_know_are_texts(logged: io.StringIO) -> None:
    get_logger().info("starting", proxy=f"http://user:{PLANTED}@proxy:3128", seconds=float("nan"), count=None)
    (line,) = lines(logged)
    assert (line["proxy"], line["seconds"], "count" in line) == ("http://***@proxy:3128", "nan", False)


def test_a_log_that_cannot_be_written_stops_nothing(logged: io.StringIO) -> None:
    closed = io.StringIO()
    configure("info", closed)
    closed.close()
    get_logger().error("still_running")
    assert logged.getvalue() == ""


def test_no_listed_field_invites_values_or_texts() -> None:
    inviting = "value message text reason detail patient row path exception data hint"
    assert not ALLOWED_FIELDS & set(inviting.split())
