"""MPI, through mpi4py's buffer calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from multiring.bench.cases import Case
from multiring.bench.contender import Call
from multiring.kernels.dtypes import DType, numpy_dtype

__all__ = ["MpiPeer"]

# MPICH 5 reduces bfloat16 itself (MPIX_BFLOAT16 in its mpi.h), but mpi4py 4.1's BFLOAT16_T is null there. Its handles
# are numbers; this one is used only where the neighbouring float16 handle is the number that the same header gives it.
_MPICH_FLOAT16, _MPICH_BFLOAT16 = 0x4C000246, 0x4C00024C


class MpiPeer:
    """MPI collectives on the same buffers.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Of the same ranks in the same order.
    """

    name = "mpi"

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._half_types: dict[str, tuple[Any, str]] = {}

    @property
    def library(self) -> str:
        """The MPI library's own name and version, one line."""
        return " ".join(self._mpi.Get_library_version().split("\n")[0].replace("\0", "").split())

    def bind(self, case: Case, send: Any, receive: Any, in_place: bool) -> Call | None:
        """Return MPI's call for the case."""
        if in_place and case.shape.in_place == "none":
            return None
        if not case.shape.reduces:
            return self._move(case, send, receive, in_place)
        datatype, _ = self._datatype(case)
        if datatype is None:
            return self._widened(case, send, receive, in_place)
        return self._reduce(case, datatype, send, receive, in_place)

    def result(self, case: Case, send: Any, receive: Any, in_place: bool) -> Any:
        """Return where the result lies: MPI's reduce-scatter in place leaves it at the front."""
        front = in_place and case.collective == "reduce_scatter" and self._datatype(case)[0] is not None
        if front and case.operation is not None and case.operation.name != "premul_sum":
            return send[: case.receive_count]
        return receive

    def how(self, case: Case, in_place: bool) -> str:
        """Say which MPI call, on which type, with what around it."""
        words = {
            "all_reduce": "Allreduce",
            "reduce": "Reduce",
            "reduce_scatter": "Reduce_scatter_block",
            "broadcast": "Bcast" if in_place else "copy at the root, Bcast",
            "all_gather": "Allgather",
            "all_to_all": "Alltoall",
            "gather": "Gather",
            "scatter": "Scatter",
            "sendrecv": "Sendrecv",
        }[case.collective]
        if in_place and case.collective != "broadcast":
            words += " MPI_IN_PLACE"
        if case.collective == "reduce_scatter" and in_place:
            words += ", result at the front of the buffer"
        if not case.shape.reduces:
            return f"{words} of bytes"
        words += f" on {self._datatype(case)[1]}"
        name = case.operation.name if case.operation else ""
        if name == "avg":
            words += ", SUM then divide, timed together"
        if name == "premul_sum":
            words += ", multiply then SUM, timed together"
        return words

    # --- moving bytes -----------------------------------------------------------------------------------------------

    def _move(self, case: Case, send: Any, receive: Any, in_place: bool) -> Call:
        mpi, comm, root = self._mpi, self._comm, case.root
        at_root = comm.rank == root
        source, target = [_bytes(send), mpi.BYTE], [_bytes(receive), mpi.BYTE]
        here = mpi.IN_PLACE
        match case.collective:
            case "broadcast":
                if in_place:
                    return lambda: comm.Bcast(target, root)

                def copy_and_broadcast() -> None:
                    if at_root:
                        np.copyto(receive, send)
                    comm.Bcast(target, root)

                return copy_and_broadcast
            case "all_gather":
                first = here if in_place else source
                return lambda: comm.Allgather(first, target)
            case "all_to_all":
                return lambda: comm.Alltoall(source, target)
            case "gather":
                first = here if in_place and at_root else source
                last = target if at_root else None
                return lambda: comm.Gather(first, last, root)
            case "scatter":
                first = source if at_root else None
                last = here if in_place and at_root else target
                return lambda: comm.Scatter(first, last, root)
            case _:
                following, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
                return lambda: comm.Sendrecv(source, following, 0, target, before, 0)

    # --- reducing ---------------------------------------------------------------------------------------------------

    def _reduce(self, case: Case, datatype: Any, send: Any, receive: Any, in_place: bool) -> Call:
        """Return the call on a type that the library reduces itself."""
        if case.operation is None:
            raise TypeError(f"{case.collective} needs an operation")
        name, scale, n_ranks = case.operation.name, case.operation.scale, case.n_ranks
        kind = send.dtype.type
        whole = _plain(send)
        if name == "premul_sum":
            scratch = np.empty_like(send)
            call = self._plain_reduce(case, datatype, _plain(scratch), _plain(receive), False)

            def multiply_and_reduce() -> None:
                np.multiply(send, kind(scale), out=scratch)
                call()

            return multiply_and_reduce
        call = self._plain_reduce(case, datatype, whole, _plain(receive), in_place)
        if name != "avg" or (case.collective == "reduce" and self._comm.rank != case.root):
            return call
        result = send[: case.receive_count] if in_place else receive
        divisor = kind(n_ranks)

        def reduce_and_divide() -> None:
            call()
            np.divide(result, divisor, out=result)

        return reduce_and_divide

    def _plain_reduce(self, case: Case, datatype: Any, send: Any, receive: Any, in_place: bool) -> Call:
        mpi, comm, root = self._mpi, self._comm, case.root
        operation = self._operation(case)
        at_root = comm.rank == root
        source = mpi.IN_PLACE if in_place else [send, datatype]
        target = [send if in_place else receive, datatype]
        match case.collective:
            case "all_reduce":
                return lambda: comm.Allreduce(source, target, operation)
            case "reduce":
                first = source if at_root else [send, datatype]
                last = target if at_root else None
                return lambda: comm.Reduce(first, last, operation, root)
            case _:
                return lambda: comm.Reduce_scatter_block(source, target, operation)

    def _widened(self, case: Case, send: Any, receive: Any, in_place: bool) -> Call:
        """Return the call for a 16-bit float that the library cannot reduce: in float32, between two casts."""
        if case.operation is None:
            raise TypeError(f"{case.collective} needs an operation")
        wide_send = np.empty(case.send_count, np.float32)
        wide_receive = np.empty(case.receive_count, np.float32)
        call = self._reduce(case, self._mpi.FLOAT, wide_send, wide_receive, False)
        narrow = receive
        gets = case.collective != "reduce" or self._comm.rank == case.root

        def cast_reduce_cast() -> None:
            np.copyto(wide_send, send, casting="unsafe")
            call()
            if gets:
                np.copyto(narrow, wide_receive, casting="unsafe")

        return cast_reduce_cast

    def _operation(self, case: Case) -> Any:
        mpi = self._mpi
        name = case.operation.name if case.operation else "sum"
        if case.dtype.kind == "bool":
            return {"max": mpi.LOR, "min": mpi.LAND}[name]
        return {
            "sum": mpi.SUM,
            "avg": mpi.SUM,
            "premul_sum": mpi.SUM,
            "prod": mpi.PROD,
            "max": mpi.MAX,
            "min": mpi.MIN,
            "band": mpi.BAND,
            "bor": mpi.BOR,
            "bxor": mpi.BXOR,
        }[name]

    def _datatype(self, case: Case) -> tuple[Any, str]:
        """Return MPI's type for a case and what to call it; None for the type where float32 has to do."""
        mpi, dtype = self._mpi, case.dtype
        if dtype.name not in ("float16", "bfloat16"):
            return _simple_type(mpi, dtype), dtype.name
        if dtype.name not in self._half_types:
            self._half_types[dtype.name] = self._half_type(dtype)
        return self._half_types[dtype.name]

    def _half_type(self, dtype: DType) -> tuple[Any, str]:
        mpi = self._mpi
        handle, name = getattr(mpi, f"{dtype.name.upper()}_T", mpi.DATATYPE_NULL), f"MPI.{dtype.name.upper()}_T"
        if handle == mpi.DATATYPE_NULL and dtype.name == "bfloat16":
            vendor, version = mpi.get_vendor()
            neighbour = getattr(mpi, "FLOAT16_T", mpi.DATATYPE_NULL)
            if vendor == "MPICH" and version[0] >= 5 and neighbour.handle == _MPICH_FLOAT16:
                handle, name = mpi.Datatype.fromhandle(_MPICH_BFLOAT16), "MPIX_BFLOAT16"
        # The ranks are of one library, so they all come to the same answer.
        if handle != mpi.DATATYPE_NULL and _reduces_right(mpi, handle, dtype):
            return handle, f"the library's own {dtype.name} ({name})"
        return None, f"float32 between casts from and to {dtype.name}, timed together"


def _reduces_right(mpi: Any, handle: Any, dtype: DType) -> bool:
    """Tell whether a type adds a few numbers right, on this rank alone."""
    left = np.array([1, 0.5, -3, 100, 0.0078125], np.float32).astype(numpy_dtype(dtype))
    right = np.array([2, 128, 1.5, -36, 0.015625], np.float32).astype(numpy_dtype(dtype))
    wanted = (left.astype(np.float32) + right.astype(np.float32)).astype(numpy_dtype(dtype))
    try:
        mpi.SUM.Reduce_local([_plain(left), left.size, handle], [_plain(right), right.size, handle])
    except mpi.Exception:
        return False
    return bool((right == wanted).all())


def _simple_type(mpi: Any, dtype: DType) -> Any:
    return {
        "int8": mpi.INT8_T,
        "uint8": mpi.UINT8_T,
        "int16": mpi.INT16_T,
        "int32": mpi.INT32_T,
        "uint32": mpi.UINT32_T,
        "int64": mpi.INT64_T,
        "uint64": mpi.UINT64_T,
        "float32": mpi.FLOAT,
        "float64": mpi.DOUBLE,
        "complex64": mpi.C_FLOAT_COMPLEX,
        "complex128": mpi.C_DOUBLE_COMPLEX,
        "bool": mpi.C_BOOL,
    }[dtype.name]


def _bytes(array: Any) -> Any:
    return array.view(np.uint8)


def _plain(array: Any) -> Any:
    """View a 16-bit float as integers: their buffers are what mpi4py can read."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 and array.dtype.kind in "fV" else array
