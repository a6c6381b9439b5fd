"""The file in which measured rates are kept between runs: where it is, how it reads, when it is passed over."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multiring.errors import TopologyError
from multiring.topology.measured import COEFFICIENTS, Estimate, HostRates, Measured, NetworkRates

__all__ = ["SCHEMA", "agreed_text", "identity", "measured_of", "path_of", "read", "to_json", "write"]

SCHEMA = 1
"""Of the file; another number is another program's."""
OFF = "off"
MOST_BYTES = 1 << 20
_FITTED = ("latency_us", "bandwidth_gbs", "call_us", "host_share", "gap_us")
_BARE = ("message_us", "port_gbs")

_log = logging.getLogger("multiring.tuning")


def path_of(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return where the file is: ``MULTIRING_TUNING``, or ``tuning.json`` in the cache folder; None for ``off``.

    The cache folder is ``MULTIRING_CACHE_DIR``, or ``multiring`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    asked = environ.get("MULTIRING_TUNING", "").strip()
    if asked.lower() == OFF:
        return None
    own, user = environ.get("MULTIRING_CACHE_DIR"), environ.get("XDG_CACHE_HOME")
    base = Path(own) if own else Path(user or "~/.cache") / "multiring"
    path = Path(asked) if asked else base / "tuning.json"
    try:
        return path.expanduser()
    except RuntimeError:  # there is no home
        return None


def identity(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Return what a machine must have in common with the one that was measured: its processor, and how many."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cpus": os.cpu_count() or 1}


def to_json(measured: Measured, *, version: str, date: str, host: str, machine: Mapping[str, Any] | None = None) -> Any:
    """Return measured rates as plain data.

    Parameters
    ----------
    measured : Measured
    version, date, host : str
        multiring's version, when it was measured, and where; for readers.
    machine : mapping, optional
        See :func:`identity`; this machine's otherwise.
    """
    links: list[dict[str, Any]] = [_host_link(rates) for rates in measured.hosts]
    network = measured.network
    if network is not None:
        links.append(
            {
                "class": "network",
                "nodes": network.n_nodes,
                "ranks": network.n_ranks,
                "points": network.n_points,
                "median_error": network.median_error,
                "p90_error": network.p90_error,
                **{name: _interval(getattr(network, name)) for name in _FITTED},
                **{name: _interval(getattr(network, name)) for name in _BARE if getattr(network, name) is not None},
                "host": None if network.host is None else _host_link(network.host),
            }
        )
    return {
        "schema": SCHEMA,
        "multiring": version,
        "date": date,
        "host": host,
        "machine": dict(identity() if machine is None else machine),
        "links": links,
    }


def write(document: Any, path: Path) -> None:
    """Write the file, whole or not at all.

    Raises
    ------
    TopologyError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        Path(file.name).replace(path)
    except OSError as error:
        raise TopologyError(
            f"tuning: cannot write {path}: {error.strerror}; give another file with --output or MULTIRING_TUNING"
        ) from None


def read(text: str, machine: Mapping[str, Any] | None = None) -> Measured:
    """Read the text of a file.

    Parameters
    ----------
    text : str
    machine : mapping, optional
        What the file's machine must be, see :func:`identity`; any, without it.

    Raises
    ------
    TopologyError
        Saying what is wrong with it.
    """
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            found = document.get("schema") if isinstance(document, dict) else type(document).__name__
            raise TopologyError(f"tuning: got schema {found!r}, wanted {SCHEMA}: run multiring tune again")
        if machine is not None and document["machine"] != dict(machine):
            raise TopologyError(
                f"tuning: measured on {document['machine']}, this is {dict(machine)}: run multiring tune here"
            )
        hosts, network = [], None
        for link in document["links"]:
            if link["class"] == "shared memory":
                hosts.append(_host(link))
            elif link["class"] == "network":
                network = _network(link)
        return Measured(tuple(hosts), network)
    except TopologyError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(
            f"tuning: got {type(error).__name__}: {error}, wanted a file that multiring tune wrote"
        ) from None


def agreed_text(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the file's text for all ranks to agree on; None where there is none, or it is not for this machine.

    A file that is passed over is one line in the log, never an error: without it calls only choose as before.
    """
    path = path_of(environ)
    if path is None:
        return None
    try:
        if path.stat().st_size > MOST_BYTES:
            raise TopologyError(f"tuning: got {path.stat().st_size} bytes, wanted at most {MOST_BYTES}")
        text = path.read_text(encoding="utf-8")
        measured = read(text, identity())
    except FileNotFoundError:
        if environ.get("MULTIRING_TUNING", "").strip():
            _log.warning("MULTIRING_TUNING: %s does not exist, so nothing is known of this machine", path)
        return None
    except (OSError, UnicodeDecodeError, TopologyError) as error:
        _log.warning("%s is passed over: %s", path, " ".join(str(error).split()))
        return None
    return text if measured.hosts or measured.network else None


def measured_of(text: str | None) -> Measured | None:
    """Return what an agreed text says, on any machine; None for None."""
    return None if text is None else read(text)


def _network(link: Mapping[str, Any]) -> NetworkRates:
    fitted = {name: _estimate(link[name], 1e-9 if name == "bandwidth_gbs" else 0.0) for name in _FITTED}
    bare = {name: _estimate(link[name], 0.0) for name in _BARE if name in link}
    return NetworkRates(
        n_nodes=_count(link["nodes"]),
        n_ranks=_count(link["ranks"]),
        host=None if link["host"] is None else _host(link["host"]),
        n_points=int(link["points"]),
        median_error=float(link["median_error"]),
        p90_error=float(link["p90_error"]),
        **fitted,
        **bare,
    )


def _host_link(rates: HostRates) -> dict[str, Any]:
    return {
        "class": "shared memory",
        "ranks": rates.n_ranks,
        "cores": rates.n_cores,
        "eager_bytes": rates.eager_bytes,
        "slot_bytes": rates.slot_bytes,
        "points": rates.n_points,
        "median_error": rates.median_error,
        "p90_error": rates.p90_error,
        "core_to_core_ns": rates.core_to_core_ns,
        "coefficients": {name: _interval(estimate) for name, estimate in rates.estimates.items()},
    }


def _host(link: Mapping[str, Any]) -> HostRates:
    known = {name: values for name, values in link["coefficients"].items() if name in COEFFICIENTS}
    if len(known) < len(link["coefficients"]):
        raise TopologyError(
            f"tuning: got coefficients {sorted(set(link['coefficients']) - set(known))} that this version does not know"
        )
    nanoseconds = link["core_to_core_ns"]
    return HostRates(
        _count(link["ranks"]),
        _count(link["cores"]),
        {name: _estimate(values, 0.0) for name, values in known.items()},
        _count(link["eager_bytes"]),
        _count(link["slot_bytes"]),
        int(link["points"]),
        float(link["median_error"]),
        float(link["p90_error"]),
        None if nanoseconds is None else float(nanoseconds),
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TopologyError(f"tuning: got {value!r}, wanted a whole number above 0")
    return value


def _estimate(values: Any, least: float) -> Estimate:
    value, low, high = (float(values[name]) for name in ("value", "low", "high"))
    if not (math.isfinite(low) and math.isfinite(high) and least <= value and low <= value <= high):
        raise TopologyError(f"tuning: got {values}, wanted finite numbers, low <= value <= high, at least {least:g}")
    return Estimate(value, low, high)


def _interval(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}
