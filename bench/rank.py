"""What each rank of a benchmark does, and what rank 0 writes about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TextIO

import numpy as np

from multiring.bench import machine, report
from multiring.bench.cases import Case
from multiring.bench.console import complain
from multiring.bench.contender import Ours
from multiring.bench.documents import document, dump, write_csv
from multiring.bench.ground import Ground
from multiring.bench.peers import make_peer
from multiring.bench.plot import write_plot
from multiring.bench.request import Request
from multiring.bench.rows import Row, count_errors
from multiring.bench.start import BROKEN_PIPE
from multiring.bench.sweep import Sweep
from multiring.bench.timing import timer_overhead_ns
from multiring.bench.wire_limit import IN_FLIGHT, SLICE_BYTES
from multiring.bench.world import LocalPlace, World, under_mpi
from multiring.errors import ArgumentError, LaunchError, MultiringError

__all__ = ["run_rank"]

_LIMIT_OF_ONE = "memcpy of limit_bytes to the busiest receiver, all ranks at once, inputs rewritten before it"
_LIMIT_OF_NODES = (
    f"exchange over MPI of limit_bytes of the busiest node, in the type that travels, in slices of {SLICE_BYTES >> 10} "
    f"KiB, {IN_FLIGHT} of each rank in flight, all ranks at once, inputs rewritten before it"
)


def run_rank(request: Request, place: LocalPlace, arguments: list[str]) -> int:
    """Measure, as one rank; return the exit code.

    A rank that fails takes the others with it: no rank is left waiting.
    """
    mpi = comm = None
    try:
        binding = machine.bind_to_core(place)
        if under_mpi():
            from mpi4py import MPI

            mpi = MPI.COMM_WORLD
        import multiring

        comm = multiring.init(device="host")
        if comm.size != place.size:
            raise LaunchError(
                f"the launcher started {place.size} ranks, but this process sees {comm.size}: "
                "mpiexec and the MPI library are of two kinds; use the mpiexec installed beside this Python"
            )
        n_errors = _measure(request, World(comm, mpi), binding, arguments)
        comm.close()
        return 1 if n_errors else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError as error:
        # The reader of the table went away; Python's own flush at exit would say so a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _fail(error, place, comm, mpi, BROKEN_PIPE)
    except (ArgumentError, TypeError, ValueError) as error:
        # The ranks run the same arguments, so they all come here.
        return _fail(error, place, comm, mpi, 2 if isinstance(error, ArgumentError) else 1)
    except Exception as error:
        return _fail(error, place, comm, mpi, 1)


def _fail(error: BaseException, place: LocalPlace, comm: Any, mpi: Any, code: int) -> int:
    if code == 1:
        complain(f"rank {place.rank}: {_one_line(error)}")
    elif code == 2 and place.local_rank == 0:
        complain(_one_line(error))
    if comm is not None:
        try:
            comm.abort(_one_line(error))
        except Exception as second:
            complain(f"rank {place.rank}: {_one_line(second)}")
    if mpi is not None:
        mpi.Abort(code)
    return code


def _one_line(error: BaseException) -> str:
    kind = "" if isinstance(error, MultiringError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def _measure(request: Request, world: World, binding: str, arguments: list[str]) -> int:
    settings = request.settings
    start_time = _now()
    cases = list(settings.cases(world.size))
    bindings = world.gather_text(binding)
    # Two hosts of a lab may be given one core.
    places = world.gather_text(f"{machine.boot()} {binding}")
    alone = all(each.startswith("core") for each in bindings) and len(set(places)) == len(places)
    ground = Ground(world, cases, spin=alone)
    pairs = ground.line_times()
    allocate: Callable[[int], Any] = _ordinary
    if request.registered:
        allocate = partial(_symmetric, world.comm)
    ours = [
        Ours(
            world.comm,
            name,
            settings.wire.name if settings.wire else None,
            request.order,
            request.prepared,
            request.registered,
        )
        for name in _algorithms(request, world.size)
    ]
    peers = [make_peer(name, world.mpi) for name in request.peers]
    sweep = Sweep(
        world, settings, ours, peers, ground.limit, ground.barrier, allocate, Ours.algorithm_name, _predicted_us
    )
    config = _config(request, world, bindings, pairs, peers)
    output = sys.stderr if request.json == "-" else sys.stdout
    notes = [*_notes(config, bindings, pairs), *([ground.note] if ground.note else [])]
    if world.rank == 0:
        _print(_header(request, config, notes), output)
    rows: list[Row] = []
    with _progress(world.rank, sweep.n_rows, output) as advance:
        for row in sweep.rows():
            rows.append(row)
            if world.rank == 0:
                _print([report.row_line(row, request.peers)], output)
                advance()
    config["core_to_core_end_ns"] = next(iter(ground.line_times().values()), None)
    if world.rank == 0:
        _print(report.footer_lines(settings.collective, rows, world.size), output)
        _warn_of_peers(rows)
        if request.json is not None:
            dump(document(rows, config, arguments, start_time, _now()), request.json, sys.stdout)
        if request.csv is not None:
            write_csv(rows, request.csv, request.peers)
        if request.plot is not None:
            write_plot(
                rows, request.plot, f"{settings.collective}, {world.size} ranks on {config['host']}", request.peers
            )
    return count_errors(rows)


def _algorithms(request: Request, n_ranks: int) -> list[str | None]:
    if request.algorithm != "all":
        return [request.algorithm]
    from multiring.collectives.schedules.algorithms import algorithms_for, build

    able: list[str | None] = []
    for name in algorithms_for(request.settings.collective):
        try:
            build(name, request.settings.collective, n_ranks)
        except MultiringError:
            continue  # such as those that need a power of two
        able.append(name)
    return able


def _predicted_us(ours: Ours, case: Case, in_place: bool) -> float | None:
    return ours.predicted_us(case, in_place)


def _symmetric(comm: Any, nbytes: int) -> Any:
    return comm.empty((nbytes,), "uint8")


def _ordinary(nbytes: int) -> Any:
    """Return ordinary memory that begins with a cache line."""
    whole = np.empty(nbytes + 64, np.uint8)
    skip = -whole.ctypes.data % 64
    return whole[skip : skip + nbytes]


def _config(
    request: Request, world: World, bindings: list[str], pairs: dict[str, float], peers: list[Any]
) -> dict[str, Any]:
    settings = request.settings
    pids = [int(row[0]) for row in world.gather([float(os.getpid())])]
    hosts, cpu = world.gather_text(machine.host_name()), machine.cpu_name()
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": settings.sizes[0],
        "maximum_bytes": settings.sizes[-1],
        f"step_{request.step[1]}": request.step[0],
        "warmup_iters": settings.warmup,
        "iterations": settings.iterations,
        "validation": settings.checks,
        "ranks": world.size,
        "started_by": "mpi" if world.mpi is not None else "multiring" if world.size > 1 else "alone",
        "host": machine.host_name(),
        "cpu": cpu,
        "device": "host",
        "binding": bindings,
        "core_to_core_ns": next(iter(pairs.values()), None),
        "core_to_core_pairs_ns": pairs,
        "timer_overhead_ns": timer_overhead_ns(),
        "time": "median over iterations of the slowest rank's time, each call alone, inputs rewritten before it",
        "nodes": world.n_nodes,
        "hosts": [hosts[world.node_of.index(node)] for node in range(world.n_nodes)],
        "node_of_rank": list(world.node_of),
        "ranks_per_node": [world.node_of.count(node) for node in range(world.n_nodes)],
        "limit": _LIMIT_OF_NODES if world.n_nodes > 1 else _LIMIT_OF_ONE,
        "registered": request.registered,
        "prepared": request.prepared,
        "wire": settings.wire.name if settings.wire else None,
        "order": request.order,
        "versions": machine.versions({peer.name: peer.library for peer in peers if hasattr(peer, "library")}),
        "commit": machine.commit(),
        "devices": [
            {"rank": rank, "group": 0, "pid": pids[rank], "hostname": hosts[rank], "device": rank, "device_info": cpu}
            for rank in range(world.size)
        ],
    }


def _notes(config: dict[str, Any], bindings: list[str], pairs: dict[str, float]) -> list[str]:
    how = ", ".join(f"rank {rank} {binding}" for rank, binding in enumerate(bindings))
    if len(set(bindings)) == 1:
        how = bindings[0]
    lines = ", ".join(f"{time_ns:g} ns from rank {pair.replace('-', ' to rank ')}" for pair, time_ns in pairs.items())
    memory = "symmetric" if config["registered"] else "ordinary"
    return [
        f"binding: {how}; the same for every contender",
        f"one cache line from core to core takes {lines or 'n/a (no two ranks with a core each)'}",
        *([_nodes_note(config)] if config["nodes"] > 1 else []),
        f"buffers: {memory} memory, each rank's input rewritten before every call; time: median of the slowest rank's",
        *(f"peer {name}: {config['versions'][name]}" for name in ("mpi",) if name in config["versions"]),
    ]


def _nodes_note(config: dict[str, Any]) -> str:
    each = ", ".join(f"{n} on {host}" for n, host in zip(config["ranks_per_node"], config["hosts"], strict=True))
    return f"nodes: {config['nodes']}, ranks: {each}; limit: {config['limit']}"


def _header(request: Request, config: dict[str, Any], notes: list[str]) -> list[str]:
    settings = request.settings
    devices = [
        f"Rank {d['rank']:2d} Group {d['group']:2d} Pid {d['pid']:6d} on {d['hostname']:>10} device {d['device']:2d} "
        f"[{binding}] {d['device_info']}"
        for d, binding in zip(config["devices"], config["binding"], strict=True)
    ]
    version = config["versions"].get("multiring", "unknown")
    lines = report.header_lines(
        settings.collective,
        version,
        settings.sizes,
        request.step,
        settings.warmup,
        settings.iterations,
        settings.checks,
        devices,
        notes,
    )
    return [*lines, *report.table_header(request.peers)]


def _print(lines: list[str], output: TextIO) -> None:
    output.write("".join(f"{line}\n" for line in lines))
    output.flush()


def _warn_of_peers(rows: list[Row]) -> None:
    wrong = {
        name for row in rows for half in row.halves.values() if half for name, p in half.peers.items() if p.n_wrong
    }
    for name in sorted(wrong):
        complain(f"warning: {name} gave wrong results: see nwrong of its figures")


@contextmanager
def _progress(rank: int, n_rows: int, output: TextIO) -> Iterator[Callable[[], object]]:
    """Show a bar on a terminal, from rank 0; nothing anywhere else."""
    if rank or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("measuring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, redirect_stdout=output.isatty()) as progress:
        task = progress.add_task("", total=n_rows)
        yield lambda: progress.advance(task)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
