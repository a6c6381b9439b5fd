"""The file of measured rates: what is written is read again, and what is strange is passed over."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from multiring.errors import TopologyError
from multiring.topology.measured import Estimate, HostRates, Measured, NetworkRates
from multiring.topology.tuning_file import SCHEMA, agreed_text, identity, measured_of, path_of, read, to_json, write

MEASURED = Measured(
    (
        HostRates(2, 2, {"step": Estimate(0.5, 0.25, 0.75)}, 8192, 131072, 100, 0.05, 0.2, 61.5),
        HostRates(4, 2, {"peer_read.16384": Estimate(0.0, 0.0, 0.125)}, 8192, 131072, 50, 0.1, 0.3, None),
    ),
    NetworkRates(Estimate(20.0, 19.0, 21.0), Estimate(0.125, 0.12, 0.13), 2, 4),
)


def document(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = to_json(MEASURED, version="1.2.3", date="2030-01-02", host="here")
    return found | changes


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "tuning.json"
    write(document(), path)
    assert read(path.read_text(), identity()) == MEASURED
    assert [entry.name for entry in path.parent.iterdir()] == ["tuning.json"]
    assert agreed_text({"MULTIRING_TUNING": str(path)}) == path.read_text()
    assert measured_of(path.read_text()) == MEASURED
    assert measured_of(None) is None


def test_what_readers_find_in_it() -> None:
    found = document()
    assert (found["schema"], found["multiring"], found["date"], found["host"]) == (
        SCHEMA,
        "1.2.3",
        "2030-01-02",
        "here",
    )
    assert [link["class"] for link in found["links"]] == ["shared memory", "shared memory", "network"]
    assert found["links"][0]["coefficients"]["step"] == {"value": 0.5, "low": 0.25, "high": 0.75}
    assert found["links"][0]["core_to_core_ns"] == 61.5


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"MULTIRING_TUNING": "/a/b.json"}, "/a/b.json"),
        ({"MULTIRING_TUNING": "off"}, None),
        ({"MULTIRING_TUNING": " OFF "}, None),
        ({"MULTIRING_CACHE_DIR": "/c"}, "/c/tuning.json"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/multiring/tuning.json"),
        ({"MULTIRING_TUNING": "", "XDG_CACHE_HOME": "/x"}, "/x/multiring/tuning.json"),
    ],
)
def test_where_it_is(environ: dict[str, str], wanted: str | None) -> None:
    assert path_of(environ) == (None if wanted is None else Path(wanted))


def _text(**changes: Any) -> str:
    return json.dumps(document(**changes))


def _link(**changes: Any) -> str:
    found = document()
    found["links"][0] |= changes
    return json.dumps(found)


STRANGE = [
    ("", "got JSONDecodeError"),
    ("[]", "got schema 'list', wanted 1"),
    ("{}", "got schema None, wanted 1"),
    (_text(schema=2), "got schema 2, wanted 1: run multiring tune again"),
    (_text()[:200], "got JSONDecodeError"),
    (_text(machine={"cpu": "another", "cpus": 3}), "measured on {'cpu': 'another', 'cpus': 3}, this is"),
    (_text(links=[{}]), "got KeyError: 'class', wanted a file that multiring tune wrote"),
    (_text(links=7), "got TypeError"),
    (_link(ranks=0), "got 0, wanted a whole number above 0"),
    (_link(ranks=True), "got True, wanted a whole number above 0"),
    (_link(coefficients={"warp": {"value": 1, "low": 1, "high": 1}}), "got coefficients ['warp'] that this version"),
    (_link(coefficients={"step": {"value": -1, "low": -1, "high": 1}}), "wanted finite numbers, low <= value <= high"),
    (_link(coefficients={"step": {"value": float("nan"), "low": 0, "high": 1}}), "wanted finite numbers"),
    (_link(coefficients={"step": {"value": 2, "low": 0, "high": 1}}), "wanted finite numbers"),
    (_link(coefficients={"step": {"value": 2}}), "got KeyError: 'low'"),
]


@pytest.mark.parametrize(("text", "why"), STRANGE)
def test_strange_files_are_one_line_in_the_log(
    text: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "multiring"):
        assert agreed_text({"MULTIRING_TUNING": str(path)}) is None
    (record,) = caplog.records
    assert why in record.getMessage()
    assert str(path) in record.getMessage()
    with pytest.raises(TopologyError):
        read(text, identity())


def test_bytes_that_are_no_text_and_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tuning.json"
    path.write_bytes(b"\xff\xfe\x00")
    assert agreed_text({"MULTIRING_TUNING": str(path)}) is None
    assert agreed_text({"MULTIRING_TUNING": str(tmp_path)}) is None
    assert len(caplog.records) == 2


def test_a_missing_file_is_no_news_unless_it_was_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert agreed_text({"XDG_CACHE_HOME": str(tmp_path)}) is None
    assert not caplog.records
    assert agreed_text({"MULTIRING_TUNING": str(tmp_path / "no.json")}) is None
    assert "does not exist" in caplog.text


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(TopologyError, match=r"tuning: cannot write .*; give another file with --output"):
        write(document(), blocked / "tuning.json")


def test_identity_is_the_processor_and_how_many(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Fast 9000 @ 3 GHz\n\nprocessor : 1\nmodel name\t: Fast 9000\n")
    assert identity(cpuinfo)["cpu"] == "Fast 9000 @ 3 GHz"
    assert identity(tmp_path / "none")["cpu"]
