"""Weights of a sharded run against the replicated optimizer's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiring as mr
from tests.sharded.reference import TYPES, Replicated, averaged, tensors

SHAPES = st.lists(
    st.one_of(
        st.just(()), st.just((0,)), st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 9), st.integers(1, 9)),
              st.just((3, 0, 2)), st.just((2, 3, 3))),
    max_size=7,
)  # fmt: skip
ELEMENTWISE = [
    mr.optim.SGD(lr=0.1),
    mr.optim.SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    mr.optim.SGD(lr=lambda done: 0.1 / (1 + done), momentum=0.9, nesterov=True),
    mr.optim.Adam(lr=0.01, weight_decay=0.1),
    mr.optim.AdamW(lr=lambda done: 0.01 * 0.5**done, betas=(0.8, 0.99)),
]
NORMED = [
    mr.optim.LARS(lr=0.5),
    mr.optim.LAMB(lr=0.05),
    mr.optim.Adafactor(),
    mr.optim.Adafactor(lr=0.03, clip=0.5, weight_decay=0.1),
]
CASES = [
    ("float32", "float32", None, None),
    ("float32", "bfloat16", "float32", "bfloat16"),
    ("float32", "float32", "bfloat16", "float32"),
    ("bfloat16", "bfloat16", None, None),
    ("bfloat16", "float32", "float32", "bfloat16"),
    ("bfloat16", "float16", "bfloat16", "float32"),
    ("float16", "float16", None, None),
]
"""Of the parameters, of the gradients as given, the wire of gradients, the wire of weights."""
STEPS = 5


def run(on_ranks: Any, size: int, init: Any, grads: Any, rule: Any, **options: Any) -> list[Any]:
    """Return the weights of a run; every rank's must be the same, bit for bit."""

    def body(comm: Any) -> Any:
        # Ranks other than 0 begin with garbage: the first weights are rank 0's.
        params = [p.copy() if comm.rank == 0 else np.full_like(p, np.nan) for p in init]
        opt = mr.ShardedOptimizer(comm, params, rule, **options)
        for step in grads:
            assert opt.step(step[comm.rank]).applied
        return params

    results = on_ranks(size, body)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert a.tobytes() == b.tobytes()
    return list(results[0])


@given(
    shapes=SHAPES, size=st.integers(1, 5), bucket_bytes=st.sampled_from([1, 16, 100, 256, 1 << 20]),
    rule=st.sampled_from(ELEMENTWISE), types=st.sampled_from(CASES), overlap=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_elementwise_rules_have_the_bits_of_the_replicated_optimizer(
    on_ranks: Any, shapes: Any, size: int, bucket_bytes: int, rule: Any, types: Any, overlap: bool, seed: int
) -> None:
    param, grad, grad_wire, weight_wire = types
    rng = np.random.default_rng(seed)
    init = [p.astype(TYPES[param]) for p in tensors(rng, shapes)]
    grads = [[[g.astype(TYPES[grad]) for g in tensors(rng, shapes)] for _ in range(size)] for _ in range(STEPS)]
    expected = Replicated(init, rule, np.float32)
    for step in grads:
        expected.step(averaged(step, TYPES[grad_wire or param]))
    got = run(
        on_ranks, size, init, grads, rule, bucket_bytes=bucket_bytes, order="rank", overlap=overlap,
        grad_wire=grad_wire, weight_wire=weight_wire,
    )  # fmt: skip
    for a, w in zip(got, expected.w, strict=True):
        np.testing.assert_array_equal(a, w.astype(TYPES[weight_wire or param]).astype(TYPES[param]))


@given(
    shapes=SHAPES, size=st.integers(1, 5), bucket_bytes=st.sampled_from([16, 100, 256, 1 << 20]),
    rule=st.sampled_from([*ELEMENTWISE, *NORMED]), seed=st.integers(0, 99), clip=st.sampled_from([None, 0.5, 1e6]),
    grad_wire=st.sampled_from(["float32", "bfloat16"]),
)  # fmt: skip
def test_every_rule_follows_its_formula(
    on_ranks: Any, shapes: Any, size: int, bucket_bytes: int, rule: Any, seed: int, clip: float | None, grad_wire: str
) -> None:
    rng = np.random.default_rng(seed)
    init = tensors(rng, shapes)
    grads = [[tensors(rng, shapes) for _ in range(size)] for _ in range(STEPS)]
    expected = Replicated(init, rule, np.float64)
    for step in grads:
        mean = averaged(step, TYPES[grad_wire])
        norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in mean))
        expected.step(mean, 1.0 if clip is None else min(1.0, clip / (norm + 1e-6)))
    got = run(
        on_ranks, size, init, grads, rule, bucket_bytes=bucket_bytes, order="rank", clip_norm=clip, grad_wire=grad_wire
    )
    for a, w in zip(got, expected.w, strict=True):
        # Five steps of float32: a few units in the last place of weights of order 1.
        np.testing.assert_allclose(a, w, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(
    "rule", [mr.optim.LARS(lr=0.5), mr.optim.LAMB(lr=0.05), mr.optim.Adafactor()], ids=lambda r: r.name
)
def test_norms_are_of_whole_tensors(on_ranks: Any, rule: Any) -> None:
    """One tensor over 4 shards whose parts differ by orders of magnitude, and one owned by a single rank."""
    rng = np.random.default_rng(3)
    shapes = [(37, 53), (200,), (2,)]
    sizes = [np.logspace(-2, 2, int(np.prod(s))).reshape(s) for s in shapes]
    init = [np.asarray(p * s, np.float32) for p, s in zip(tensors(rng, shapes), sizes, strict=True)]
    grads = [
        [
            [np.asarray(g * s[::-1], np.float32) for g, s in zip(tensors(rng, shapes), sizes, strict=True)]
            for _ in range(4)
        ]
        for _ in range(STEPS)
    ]
    expected = Replicated(init, rule, np.float64)
    sharded = [Replicated(np.array_split(p.reshape(-1), 4), rule, np.float64) for p in init]
    for step in grads:
        mean = averaged(step)
        expected.step(mean)
        for tensor, split in enumerate(sharded):
            split.step(np.array_split(mean[tensor].reshape(-1), 4))
    got = run(on_ranks, 4, init, grads, rule, bucket_bytes=1 << 20, order="rank")
    for tensor, (a, w) in enumerate(zip(got, expected.w, strict=True)):
        np.testing.assert_allclose(a, w, rtol=2e-5, atol=2e-5)
        if tensor < 2:
            wrong = np.concatenate(sharded[tensor].w).reshape(a.shape)
            assert np.abs(wrong - w).max() > 1e-3, "norms of shards would pass this test too"


@pytest.mark.parametrize(
    "rule", [mr.optim.Adam(), mr.optim.LARS(), mr.optim.LAMB(), mr.optim.Adafactor()], ids=lambda r: r.name
)
def test_rows_and_columns_without_a_gradient(on_ranks: Any, rule: Any) -> None:
    """Units that never fire: their moments are next to nothing, and products of two of them are 0 in float32."""
    rng = np.random.default_rng(9)
    shapes = [(8, 9), (5,)]
    init, grads = tensors(rng, shapes), [[tensors(rng, shapes, 1e-3) for _ in range(2)] for _ in range(3)]
    for step in grads:
        for matrix, vector in step:
            matrix[2] = matrix[:, 4] = vector[1] = 0
            matrix[5] *= np.float32(1e-12)
    expected = Replicated(init, rule, np.float64)
    for step in grads:
        expected.step(averaged(step))
    for a, w in zip(run(on_ranks, 2, init, grads, rule, order="rank"), expected.w, strict=True):
        np.testing.assert_allclose(a, w, rtol=3e-6, atol=3e-6)


def test_a_rule_of_ones_own(on_ranks: Any) -> None:
    def signed(gradient: Any, weight: Any, trace: Any, lr: Any, keep: Any) -> Any:
        moved = keep * trace + gradient
        return weight - lr * (np.float32(1) if moved > 0 else np.float32(-1)), moved

    rule = mr.optim.Elementwise(
        signed, moments=("trace",), parameters={"lr": lambda done: 0.5 ** (done + 1), "keep": 0.5}
    )
    rng = np.random.default_rng(5)
    shapes = [(3, 7), (10,)]
    init, grads = tensors(rng, shapes), [[tensors(rng, shapes) for _ in range(3)] for _ in range(3)]
    weights, traces = [p.copy() for p in init], [np.zeros_like(p) for p in init]
    for done, step in enumerate(grads):
        for i, g in enumerate(averaged(step)):
            traces[i] = np.float32(0.5) * traces[i] + g
            weights[i] = weights[i] - np.float32(0.5 ** (done + 1)) * np.where(
                traces[i] > 0, np.float32(1), np.float32(-1)
            )
    for a, b in zip(run(on_ranks, 3, init, grads, rule, order="rank", bucket_bytes=64), weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.shm
@pytest.mark.parametrize("overlap", [False, True])
def test_processes_give_the_same_bits(on_processes: Any, overlap: bool) -> None:
    rng = np.random.default_rng(11)
    shapes = [(64, 33), (), (1000,), (0,), (7, 3, 5)]
    init = [p.astype(TYPES["bfloat16"]) for p in tensors(rng, shapes)]
    grads = [[[g.astype(TYPES["bfloat16"]) for g in tensors(rng, shapes)] for _ in range(3)] for _ in range(STEPS)]
    rule = mr.optim.AdamW(lr=0.01)
    expected = Replicated(init, rule, np.float32)
    for step in grads:
        expected.step(averaged(step, TYPES["bfloat16"]))
    got = run(on_processes, 3, init, grads, rule, bucket_bytes=512, order="rank", overlap=overlap)
    for a, w in zip(got, expected.w, strict=True):
        np.testing.assert_array_equal(a, w.astype(TYPES["bfloat16"]))
