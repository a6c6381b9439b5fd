"""PTX twins of the primitives, and the primitives that only a GPU has: thread numbers and barriers.

The host's Python functions stay the meaning and are what the simulator runs. Memory that others read is reached at
system scope: a peer may be another GPU or the host.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from llvmlite import ir
from numba import types

from multiring.kernels import bits, primitives, rules, scalars
from multiring.kernels.cuda.homes import Twin, native_bfloat16, twin

__all__ = ["all_threads", "barrier", "block_index", "n_blocks", "release_fence", "thread_index", "wait_ns"]

_LLVM = {
    types.int64: (ir.IntType(64), "l"),
    types.uint64: (ir.IntType(64), "l"),
    types.int32: (ir.IntType(32), "r"),
    types.uint32: (ir.IntType(32), "r"),
    types.uint16: (ir.IntType(16), "h"),
    types.float32: (ir.FloatType(), "f"),
    types.float64: (ir.DoubleType(), "d"),
}


def assembly(text: str, *, ordered: bool = True) -> Twin:
    """Return the twin that is one piece of inline PTX: ``$0`` the result if there is one, then the arguments.

    Parameters
    ----------
    text : str
    ordered : bool
        Whether it touches memory or the clock, so that the compiler must neither move, merge nor drop it.
    """

    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        returns = signature.return_type in _LLVM
        result = _LLVM[signature.return_type][0] if returns else ir.VoidType()
        constraints = [f"={_LLVM[signature.return_type][1]}"] if returns else []
        constraints += [_LLVM[kind][1] for kind in signature.args]
        constraints += ["~{memory}"] if ordered else []
        function_type = ir.FunctionType(result, [_LLVM[kind][0] for kind in signature.args])
        code = ir.InlineAsm(function_type, text, ",".join(constraints), side_effect=ordered)
        value = builder.call(code, arguments)
        return value if returns else context.get_dummy_value()

    return lowering


def _cast_to(kind: Any) -> Twin:
    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _LLVM[kind][0])

    return lowering


# --- words ----------------------------------------------------------------------------------------------------------

_LOAD = types.int64(types.int64)
_STORE = types.void(types.int64, types.int64)
_MODIFY = types.int64(types.int64, types.int64)

twin(_LOAD, assembly("ld.global.s64 $0, [$1];"), primitives.load_word)
twin(_STORE, assembly("st.global.s64 [$0], $1;"), primitives.store_word)
twin(_LOAD, assembly("ld.relaxed.sys.global.s64 $0, [$1];"), primitives.load_relaxed)
twin(_STORE, assembly("st.relaxed.sys.global.s64 [$0], $1;"), primitives.store_relaxed)
twin(_LOAD, assembly("ld.acquire.sys.global.s64 $0, [$1];"), primitives.load_acquire)
twin(_STORE, assembly("st.release.sys.global.s64 [$0], $1;"), primitives.store_release)
twin(_MODIFY, assembly("atom.acq_rel.sys.global.exch.b64 $0, [$1], $2;"), primitives.exchange_word)
twin(_MODIFY, assembly("atom.acq_rel.sys.global.add.u64 $0, [$1], $2;"), primitives.add_word)
twin(
    types.int64(types.int64, types.int64, types.int64),
    assembly("atom.acq_rel.sys.global.cas.b64 $0, [$1], $2, $3;"),
    primitives.compare_and_swap,
)
twin(types.void(), assembly("fence.sc.sys;"), primitives.fence)
twin(types.void(), assembly("nanosleep.u32 32;"), primitives.pause)
twin(types.void(), assembly("nanosleep.u32 1000;"), primitives.yield_processor)
twin(types.int64(), assembly("mov.u64 $0, %globaltimer;"), primitives.clock_ns)

# --- bit casts ------------------------------------------------------------------------------------------------------

twin(types.uint32(types.float32), _cast_to(types.uint32), bits.bits_of_float32)
twin(types.float32(types.uint32), _cast_to(types.float32), bits.float32_of_bits)
twin(types.uint64(types.float64), _cast_to(types.uint64), bits.bits_of_float64)
twin(types.float64(types.uint64), _cast_to(types.float64), bits.float64_of_bits)

# --- the processor's own conversions --------------------------------------------------------------------------------
# They round to nearest even and keep subnormals. A NaN has other bits than the host's, so NaN is chosen by value.


def _select_not_a_number(text: str, canonical: int) -> Twin:
    convert = assembly(text, ordered=False)

    def lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rounded = convert(context, builder, signature, arguments)
        value = arguments[0]
        return builder.select(
            builder.fcmp_unordered("uno", value, value), ir.Constant(ir.IntType(16), canonical), rounded
        )

    return lowering


_NARROW = types.uint16(types.float32)
_narrow_half = _select_not_a_number("cvt.rn.f16.f32 $0, $1;", 0x7E00)
_narrow_bfloat16 = _select_not_a_number("cvt.rn.bf16.f32 $0, $1;", 0x7FC0)

NATIVE_BFLOAT16 = (8, 0)
"""The first compute capability that has ``cvt.rn.bf16.f32``."""


def _lower_narrow_bfloat16(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Use the instruction where the architecture has it, and integer code of equal bits elsewhere."""
    if native_bfloat16():
        return _narrow_bfloat16(context, builder, signature, arguments)
    word, half = ir.IntType(32), ir.IntType(16)
    value = arguments[0]
    pattern = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(pattern, word(16)), word(1))
    rounded = builder.trunc(builder.lshr(builder.add(pattern, builder.add(word(0x7FFF), odd)), word(16)), half)
    return builder.select(builder.fcmp_unordered("uno", value, value), half(0x7FC0), rounded)


twin(_NARROW, _narrow_half, scalars.narrow_float16)
twin(_NARROW, _lower_narrow_bfloat16, scalars.narrow_bfloat16)
twin(types.float32(types.float32), assembly("sqrt.rn.f32 $0, $1;", ordered=False), rules.square_root)
twin(types.float32(types.uint16), assembly("cvt.f32.f16 $0, $1;", ordered=False), scalars.widen_float16)

# --- threads --------------------------------------------------------------------------------------------------------


def _simulated() -> Any:
    """Return the simulator's thread, or None in plain Python, where a block is one thread and a grid one block."""
    thread = threading.current_thread()
    return thread if hasattr(thread, "threadIdx") else None


@twin(types.int64(), assembly("{ .reg .u32 t; mov.u32 t, %tid.x; cvt.u64.u32 $0, t; }", ordered=False))
def thread_index() -> int:
    """Return this thread's number in its block."""
    thread = _simulated()
    return int(thread.threadIdx.x) if thread else 0


@twin(types.int64(), assembly("{ .reg .u32 t; mov.u32 t, %ctaid.x; cvt.u64.u32 $0, t; }", ordered=False))
def block_index() -> int:
    """Return this block's number in the grid."""
    thread = _simulated()
    return int(thread.blockIdx.x) if thread else 0


@twin(types.int64(), assembly("{ .reg .u32 t; mov.u32 t, %nctaid.x; cvt.u64.u32 $0, t; }", ordered=False))
def n_blocks() -> int:
    """Return how many blocks the grid has."""
    if not _simulated():
        return 1
    from numba.cuda.simulator.kernel import _get_kernel_context

    return int(_get_kernel_context().gridDim.x)


@twin(types.void(), assembly("bar.sync 0;"))
def barrier() -> None:
    """Wait for all threads of the block; what they wrote to memory before is visible to all of them afterwards."""
    thread = _simulated()
    if thread:
        thread.syncthreads()


def _lower_all_threads(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    text = "{ .reg .pred p, q; setp.ne.s64 p, $1, 0; bar.red.and.pred q, 0, p; selp.s64 $0, 1, 0, q; }"
    return assembly(text)(context, builder, signature, arguments)


@twin(types.int64(types.int64), _lower_all_threads)
def all_threads(value: int) -> int:
    """Return 1 if every thread of the block passes something other than 0; a :func:`barrier` as well."""
    thread = _simulated()
    return int(thread.syncthreads_and(int(value != 0))) if thread else int(value != 0)


@twin(types.void(), assembly("fence.acq_rel.sys;"))
def release_fence() -> None:
    """Order what was read and written before against the words that are stored afterwards."""


@twin(types.void(types.int64), assembly("{ .reg .u32 t; cvt.u32.u64 t, $0; nanosleep.u32 t; }"))
def wait_ns(duration_ns: int) -> None:
    """Let others run for about a time of at most a millisecond."""
    time.sleep(duration_ns * 1e-9)
