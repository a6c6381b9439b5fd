"""What is refused, with its text; layouts of memory that are not refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multiring as mr
from tests.sharded.reference import TYPES

F = np.float32


@pytest.mark.parametrize(
    ("params", "options", "match"),
    [
        ([np.zeros(3)], {}, r"params\['0'\]: got float64, wanted float32, bfloat16, float16: masters are float32"),
        ([np.zeros(3, F)], {"master": "bfloat16"}, "master: got bfloat16, wanted 'float32'"),
        ([np.zeros(3, F)], {"bucket_bytes": 0}, "bucket_bytes: got 0, wanted bytes, 1 or more"),
        ([np.zeros(3, F)], {"clip_norm": -1.0}, "clip_norm: got -1.0, wanted above 0, or None"),
        ([np.zeros(3, F)], {"norm": "l1"}, "norm: got 'l1', wanted 'l2' or 'max'"),
        ([np.zeros(3, F)], {"order": "any"}, "order: got 'any', wanted None or 'rank'"),
        ([np.zeros(3, F)], {"accumulation": "max"}, "accumulation: got 'max', wanted 'mean' or 'sum'"),
        ([np.zeros(3, F)], {"grad_wire": "int32"}, "grad_wire: got int32, wanted float32, bfloat16, float16 or None"),
        ([np.zeros(3, F)], {"subgroup": 2}, "subgroup: got 2 on 1 ranks, wanted 'node' or a divisor of 1"),
        ([np.zeros(3, F)], {"rule": "adam"}, r"got 'adam', wanted one of multiring.optim, such as Adam\(lr=1e-3\)"),
        ([np.zeros(3, F)], {"groups": [{"lr": 1}]}, r"groups\[0\]: got dict, wanted multiring.sharded.Group"),
        ([np.zeros(3, F)], {"groups": [mr.sharded.Group([0], speed=1)]}, "got 'speed', wanted hyper-parameters"),
        ([np.zeros(3, F)], {"groups": [mr.sharded.Group(["x"])]}, "members: got 'x', wanted names of parameters"),
        ([np.zeros(3, F)], {"groups": [mr.sharded.Group([0], momentum=0.5)]}, "state is .'velocity',., wanted .."),
    ],
)  # fmt: skip
def test_settings(on_ranks: Any, params: Any, options: dict[str, Any], match: str) -> None:
    def body(comm: Any) -> None:
        rule = options.pop("rule", mr.optim.SGD())
        with pytest.raises(mr.MultiringError, match=match):
            mr.ShardedOptimizer(comm, params, rule, **options)

    on_ranks(1, body)


def test_overlapping_parameters(on_ranks: Any) -> None:
    def body(comm: Any) -> None:
        x = np.zeros(8, F)
        with pytest.raises(mr.ArgumentError, match=r"params\['1'\] overlaps params\['0'\], wanted separate arrays"):
            mr.ShardedOptimizer(comm, [x[:5], x[4:]], mr.optim.SGD())

    on_ranks(1, body)


@pytest.mark.parametrize(
    ("grads", "match"),
    [
        ([np.zeros(3, F)], "step: grads: got 1 gradients, wanted 2, one for each parameter"),
        ([np.zeros(3, F), np.zeros(3, F)], r"grads\['b'\]: got shape \(3,\), wanted \(2, 2\), the parameter's"),
        ([np.zeros(3, F), np.zeros((2, 2), np.int32)], r"grads\['b'\]: got int32, wanted a floating-point type"),
        ({"a": np.zeros(3, F), "c": 1}, r"grads: got names \['c'\] that no parameter has and none for \['b'\]"),
    ],
)
def test_gradients(on_ranks: Any, grads: Any, match: str) -> None:
    def body(comm: Any) -> None:
        opt = mr.ShardedOptimizer(comm, {"a": np.zeros(3, F), "b": np.zeros((2, 2), F)}, mr.optim.SGD())
        with pytest.raises(mr.MultiringError, match=match):
            opt.step(grads)
        with pytest.raises(
            mr.ArgumentError, match="got parameter 'z', wanted a number from 0 to 1 or one of the names"
        ):
            opt.backward_hook("z")
        opt.step([None, np.ones((2, 2), F)])  # nothing was spoilt

    on_ranks(1, body)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: mr.optim.SGD(lr=-1), "SGD: lr: got -1, wanted 0 or more"),
        (lambda: mr.optim.SGD(momentum=1.0), "SGD: momentum: got 1.0, wanted 0 to below 1"),
        (lambda: mr.optim.SGD(nesterov=True), "nesterov: got True with momentum 0, wanted momentum above 0"),
        (lambda: mr.optim.Adam(lr="fast"), "Adam: lr: got 'fast', wanted a number"),  # type: ignore[arg-type]
        (
            lambda: mr.optim.Adam(betas=(0.9, 1.0)),
            r"Adam: betas: got \(0.9, 1.0\), wanted two numbers from 0 to below 1",
        ),
        (lambda: mr.optim.LAMB(betas=0.9), "LAMB: betas: got 0.9, wanted two numbers"),  # type: ignore[arg-type]
        (lambda: mr.optim.Adafactor(clip=0.0), "Adafactor: clip: got 0.0, wanted above 0"),
        (lambda: mr.optim.Elementwise(3), "Elementwise: function: got 3, wanted a function of scalars"),  # type: ignore[arg-type]
    ],
)
def test_rules(make: Any, match: str) -> None:
    with pytest.raises(mr.MultiringError, match=match):
        make()


def test_a_function_that_does_not_compile(on_ranks: Any) -> None:
    def body(comm: Any) -> None:
        rule = mr.optim.Elementwise(lambda g, w: (w.nothing,))
        with pytest.raises(mr.ArgumentTypeError, match=r"rule: Numba cannot compile Elementwise:<lambda>"):
            mr.ShardedOptimizer(comm, [np.zeros(3, F)], rule)

    on_ranks(1, body)


@pytest.mark.parametrize(
    ("shapes", "options", "match"),
    [
        ([[(3, 4)], [(4, 3)]], [{}, {}], r"rank 0 has '0: float32 \(3, 4\), SGD.*rank 1 has '0: float32 \(4, 3\)"),
        ([[(3,), (4,)], [(3,)]], [{}, {}], r"rank 0 has '1: float32 \(4,\)"),
        (
            [[(3,)], [(3,)]],
            [{}, {"grad_wire": "bfloat16"}],
            "rank 0 has 'grad_wire=None', rank 1 has \"grad_wire='bfloat16'\"",
        ),
        ([[(3,)], [(3,)]], [{}, {"clip_norm": 1.0}], "rank 0 has 'clip_norm=None', rank 1 has 'clip_norm=1.0'"),
    ],
)
def test_ranks_that_differ(on_ranks: Any, shapes: Any, options: Any, match: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(mr.MismatchError, match=match):
            mr.ShardedOptimizer(comm, [np.zeros(s, F) for s in shapes[comm.rank]], mr.optim.SGD(), **options[comm.rank])
        comm.barrier()  # the communicator lives

    on_ranks(2, body)


def test_any_layout_of_memory(on_ranks: Any) -> None:
    """Transposed, strided and read-only gradients, parameters with gaps, several types at once."""

    def body(comm: Any) -> Any:
        base = np.arange(24, dtype=F).reshape(4, 6)
        params = [
            np.zeros((6, 4), F).T,
            np.ones((4, 6), F)[:, ::2],
            np.ones(5, TYPES["bfloat16"]),
            np.ones(3, np.float16),
        ]
        frozen = np.ones(5, F)
        frozen.setflags(write=False)
        opt = mr.ShardedOptimizer(comm, params, mr.optim.SGD(lr=1.0), bucket_bytes=32)
        opt.step([np.asfortranarray(base), base[:, 1::2], frozen, np.full(3, 0.5)])
        return params

    base = np.arange(24, dtype=F).reshape(4, 6)
    for a, b, c, d in on_ranks(2, body):
        np.testing.assert_array_equal(a, -base)
        np.testing.assert_array_equal(b, 1 - base[:, 1::2])
        np.testing.assert_array_equal(c.astype(F), np.zeros(5, F))
        np.testing.assert_array_equal(d, np.full(3, 0.5, np.float16))


def test_memory_without_copies(on_ranks: Any) -> None:
    """Parameters and gradients in symmetric memory are used where they lie."""

    def body(comm: Any) -> None:
        params = mr.sharded.allocate(comm, [(3, 5), (), (7,)])
        opt = mr.ShardedOptimizer(comm, params, mr.optim.SGD(lr=1.0))
        assert opt.streams[0].aliased
        assert np.shares_memory(opt.streams[0].weights, params[0])
        for g in opt.gradients:
            g[...] = comm.rank + 1
        opt.step(opt.gradients)
        assert all((p == -1.5).all() for p in params)

    on_ranks(2, body)
