"""What was asked for on the command line, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from multiring.bench.cases import COLLECTIVES, collective_of
from multiring.bench.peers import check_peers
from multiring.bench.plot import check_plot
from multiring.bench.sizes import parse_bytes, parse_factor, sweep_sizes
from multiring.bench.sweep import Settings
from multiring.errors import ArgumentError, ArgumentTypeError
from multiring.kernels.dtypes import DTYPES, DType, dtype_of
from multiring.kernels.operations import OPERATIONS, Reduction, check_operation, premul_sum

__all__ = ["Request", "check_roots", "make_request"]

_ALL_DTYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")
_ALL_OPERATIONS = ("sum", "prod", "min", "max", "avg", "mulsum")
_MULSUM_SCALE = 2.0


@dataclass(frozen=True, slots=True)
class Request:
    """A checked command line.

    Attributes
    ----------
    settings : Settings
        Without roots where ``-r all`` waits for the number of ranks.
    all_roots : bool
    step : tuple of (number, "factor" or "bytes")
    end_text : str
        The last size as written.
    ranks : int or None
    algorithm : str or None
        ``"all"`` for every one.
    registered, prepared : bool
    order : str or None
    peers : tuple of str
    json, csv, plot : str or None
        Files.
    """

    settings: Settings
    all_roots: bool
    step: tuple[float, str]
    end_text: str
    ranks: int | None
    algorithm: str | None
    registered: bool
    prepared: bool
    order: str | None
    peers: tuple[str, ...]
    json: str | None
    csv: str | None
    plot: str | None


def make_request(
    collective: str,
    minbytes: str,
    maxbytes: str,
    stepfactor: str | None,
    stepbytes: str | None,
    iters: int | None,
    warmup_iters: int,
    check: int,
    op: str,
    datatype: str,
    root: str,
    ranks: int | None,
    algorithm: str | None,
    registered: bool,
    wire: str | None,
    order: str | None,
    prepared: bool,
    peers: tuple[str, ...],
    json: str | None,
    csv: str | None,
    plot: str | None,
    device: str,
) -> Request:
    """Check every option.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        Naming the option, what was given and what is wanted.
    """
    name = collective_of(collective)
    shape = COLLECTIVES[name]
    step_bytes = None if stepbytes is None else parse_bytes(stepbytes, "-i")
    factor: Fraction | None = None
    if stepfactor is not None:
        factor = parse_factor(stepfactor, "-f")
    elif step_bytes is None:
        factor = Fraction(2)
    sizes = sweep_sizes(parse_bytes(minbytes, "-b"), parse_bytes(maxbytes, "-e"), factor, step_bytes)
    multiply = factor is not None and factor > 1
    step = (float(factor or 0), "factor") if multiply else (float(step_bytes or 0), "bytes")
    if iters is not None and iters < 1:
        raise ArgumentError(f"-n: got {iters} iterations, wanted at least 1")
    if warmup_iters < 0:
        raise ArgumentError(f"-w: got {warmup_iters} warm-up iterations, wanted 0 or more")
    if check < 0:
        raise ArgumentError(f"-c: got {check} checks, wanted 0 (no checking) or more")
    if ranks is not None and ranks < 1:
        raise ArgumentError(f"-g: got {ranks} ranks, wanted at least 1")
    if device != "host":
        raise ArgumentError(f"--device: got {device!r}, which this version cannot measure yet; wanted host")
    if order not in (None, "rank"):
        raise ArgumentError(f"--order: got {order!r}, wanted rank")
    dtypes = tuple(DTYPES[each] for each in _ALL_DTYPES) if datatype == "all" else (dtype_of(datatype, "-d"),)
    operations = _operations(op, dtypes, datatype == "all") if shape.reduces else ()
    wire_type = None if wire is None else dtype_of(wire, "--wire")
    for option, value in (("--wire", wire), ("--order", order)):
        if value is not None and not shape.reduces:
            raise ArgumentError(f"{option}: got {value!r} for {name}, which does not reduce; wanted a reduction")
    if wire_type is not None and any(dtype.kind != "float" for dtype in (*dtypes, wire_type)):
        raise ArgumentTypeError(f"--wire: got {wire!r} for {datatype}, wanted floating-point types on both sides")
    if algorithm is not None:
        _check_algorithm(algorithm, name)
    if plot is not None:
        check_plot(plot)
    for option, path in (("--json", None if json == "-" else json), ("--csv", csv), ("--plot", plot)):
        if path is not None and (path == "-" or Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
            raise ArgumentError(f"{option}: got {path!r}, wanted a file in a folder that exists")
    all_roots = shape.rooted and root == "all"
    roots = (_root(root),) if shape.rooted and not all_roots else ()
    settings = Settings(name, sizes, dtypes, operations, roots, iters, warmup_iters, check, wire_type)
    return Request(
        settings,
        all_roots,
        step,
        maxbytes,
        ranks,
        algorithm,
        registered,
        prepared,
        order,
        check_peers(peers),
        json,
        csv,
        plot,
    )


def _check_algorithm(algorithm: str, collective: str) -> None:
    if collective == "sendrecv":
        raise ArgumentError(f"--algorithm: got {algorithm!r} for sendrecv, which has none; wanted a collective")
    if algorithm != "all":
        from multiring.collectives.schedules.algorithms import check_algorithm

        check_algorithm(algorithm, collective)


def _root(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentError(f"-r: got {text!r}, wanted a rank from 0, or all")
    return int(text)


def _operations(op: str, dtypes: tuple[DType, ...], every_dtype: bool) -> tuple[tuple[str, Reduction], ...]:
    if op == "all":
        return tuple((name, _operation(name)) for name in _ALL_OPERATIONS)
    operation = _operation(op)
    if not every_dtype:
        for dtype in dtypes:
            check_operation(operation, dtype)
    return ((op, operation),)


def _operation(name: str) -> Reduction:
    if name == "mulsum":
        return premul_sum(_MULSUM_SCALE)
    if name not in OPERATIONS:
        raise ArgumentError(f"-o: got {name!r}, wanted one of {', '.join((*OPERATIONS, 'mulsum'))}, or all")
    return OPERATIONS[name]


def check_roots(request: Request, n_ranks: int) -> tuple[int, ...]:
    """Return the roots for a number of ranks.

    Raises
    ------
    ArgumentError
        If ``-r`` names none of them.
    """
    if request.all_roots:
        return tuple(range(n_ranks))
    for root in request.settings.roots:
        if root >= n_ranks:
            raise ArgumentError(f"-r: got {root}, wanted a rank from 0 to {n_ranks - 1}, or all")
    return request.settings.roots
