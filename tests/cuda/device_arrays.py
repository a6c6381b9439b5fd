"""Arrays for the simulator: at a chosen misalignment, full of poison, between canaries, every access checked."""

from __future__ import annotations

import weakref
from typing import Any

from multiring.kernels import memory
from multiring.kernels.cuda.arguments import View
from multiring.kernels.dtypes import DTYPES, numpy_dtype
from tests.kernels.span_harness import Guarded


class DeviceArray(Guarded):  # pyright: ignore[reportUntypedBaseClass]
    """A guarded array that kernels may touch within its bytes and nowhere else."""

    def __init__(self, count: int, name: str, offset: int = 0) -> None:
        """``offset`` counts elements."""
        dtype = numpy_dtype(DTYPES[name])
        super().__init__(count, dtype, offset * dtype.itemsize % 64)
        self.view = View(self.address, count, DTYPES[name])
        if count:
            memory.register(self.address, self.n_bytes)
            weakref.finalize(self, memory.forget, self.address)

    @classmethod
    def of(cls, values: Any, name: str, offset: int = 0) -> DeviceArray:
        array = cls(len(values), name, offset)
        array.set(values)
        return array
