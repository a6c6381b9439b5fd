"""Steps that are skipped, clipped, accumulated, handed in bit by bit; groups; what goes over the wire."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import multiring as mr
from tests.sharded.reference import TYPES, Replicated, averaged, tensors, whole_numbers

SHAPES = [(5, 7), (), (0,), (33,), (2, 3, 4)]


def same(results: list[Any]) -> Any:
    """Return what every rank has; the same bits."""
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return results[0]


# --- inf and NaN ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule", [mr.optim.Adam(lr=0.1), mr.optim.LARS(), mr.optim.LAMB(), mr.optim.Adafactor()], ids=lambda r: r.name
)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_gradient_of_one_rank_skips_the_step_on_all(on_ranks: Any, rule: Any, bad: float) -> None:
    """A skipped step moves no counter but its own (accelerate #4242, OLMo-core #309: the scheduler moved on)."""
    rng = np.random.default_rng(1)
    init = tensors(rng, SHAPES)
    grads = [[tensors(rng, SHAPES) for _ in range(3)] for _ in range(5)]
    grads[1][2][3][5] = bad  # step 2 on rank 2, step 4 on rank 0
    grads[3][0][4][1, 2, 3] = bad

    def body(comm: Any) -> Any:
        params = [p.copy() for p in init]
        opt = mr.ShardedOptimizer(comm, params, rule, skip_nonfinite=True, order="rank", bucket_bytes=64)
        applied = []
        for step in grads:
            before = [p.copy() for p in params]
            result = opt.step(step[comm.rank])
            applied.append(result.applied)
            if not result.applied:
                assert result.gradient_norm is not None
                assert not math.isfinite(result.gradient_norm)
                # Checked before the update, whatever the step (torchtitan #4226).
                assert all((a == b).all() for a, b in zip(before, params, strict=True))
        assert applied == [True, False, True, False, True]
        assert (opt.steps, opt.skipped) == (3, 2)
        return params

    expected = Replicated(init, rule, np.float64)
    for t in (0, 2, 4):
        expected.step(averaged(grads[t]))
    for a, w in zip(same(on_ranks(3, body)), expected.w, strict=True):
        np.testing.assert_allclose(a, w, rtol=3e-6, atol=3e-6)


def test_a_skipped_step_is_told(on_ranks: Any, caplog: pytest.LogCaptureFixture) -> None:
    def body(comm: Any) -> None:
        opt = mr.ShardedOptimizer(comm, [np.zeros(3, np.float32)], mr.optim.SGD(), skip_nonfinite=True)
        opt.step([np.full(3, np.inf, np.float32)])

    with caplog.at_level(logging.WARNING, "multiring.sharded"):
        on_ranks(1, body)
    assert "step 1 skipped on all ranks: the gradient has an inf or a NaN (1 skipped so far)" in caplog.text


def test_an_overflow_of_a_narrow_wire_skips(on_ranks: Any) -> None:
    def body(comm: Any) -> Any:
        opt = mr.ShardedOptimizer(
            comm, [np.ones(9, np.float32)], mr.optim.SGD(), grad_wire="float16", skip_nonfinite=True
        )
        return opt.step([np.full(9, 70000.0, np.float32)]).applied

    assert on_ranks(2, body) == [False, False]


# --- norms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["l2", "max"])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_the_norm_counts_each_element_once(on_ranks: Any, kind: str, size: int) -> None:
    """Neither the largest of shards' norms nor padding nor replicas count (fairscale #167, lbann #2376)."""
    shapes = [(7,), (1,), (0,), (2, 3)]  # 14 elements: padded on 3 and 4 ranks

    def body(comm: Any) -> Any:
        opt = mr.ShardedOptimizer(
            comm, [np.zeros(s, np.float32) for s in shapes], mr.optim.SGD(lr=1.0), clip_norm=2.0, norm=kind
        )
        for stream in opt.streams:
            stream.gradients[...] = 1e6  # garbage, in the padding too
        grads = [np.full(s, 3.0 if i != 3 else -4.0, np.float32) for i, s in enumerate(shapes)]
        result = opt.step(grads)
        return result.gradient_norm, result.scale

    wanted = np.sqrt(8 * 9 + 6 * 16) if kind == "l2" else 4.0
    for norm, scale in on_ranks(size, body):
        assert norm == pytest.approx(wanted, rel=1e-12)
        assert scale == pytest.approx(2 / (wanted + 1e-6), rel=1e-12)


@pytest.mark.parametrize("rule", [mr.optim.LARS(lr=0.5), mr.optim.LAMB(lr=0.5)], ids=lambda r: r.name)
def test_a_zero_norm_gives_ratio_one(on_ranks: Any, rule: Any) -> None:
    """Zero weights move, zero gradients give no NaN (pytorch-lamb #6, composer #967); layers of two ranks, of one."""
    shapes = [(6,), (30,), (2,), (3,)]
    init = [np.zeros(6, np.float32), np.zeros(30, np.float32), np.ones(2, np.float32), np.zeros(3, np.float32)]
    grads = [
        np.full(6, 0.5, np.float32),
        np.full(30, 0.25, np.float32),
        np.zeros(2, np.float32),
        np.zeros(3, np.float32),
    ]

    def body(comm: Any) -> Any:
        params = [p.copy() for p in init]
        mr.ShardedOptimizer(comm, params, rule).step(grads)
        return params

    expected = Replicated(init, rule, np.float64)
    expected.step(grads)
    got = same(on_ranks(2, body))
    for a, w in zip(got, expected.w, strict=True):
        np.testing.assert_allclose(a, w, rtol=1e-6)
    assert (got[0] != 0).all()
    assert (got[3] == 0).all()
    assert shapes[1] == got[1].shape


# --- groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [lambda name, shape: len(shape) < 2, ["b1", "b2"], [1, 3]])
def test_excluded_parameters_do_not_decay(on_ranks: Any, members: Any) -> None:
    """With a shard's edge inside an excluded tensor (Fast-LLM #542: norms and biases decayed again)."""
    shapes = {"w1": (5, 3), "b1": (21,), "w2": (2, 2), "b2": (1,)}
    init = dict(zip(shapes, whole_numbers(np.random.default_rng(2), list(shapes.values()), 1, 9), strict=True))

    def body(comm: Any) -> Any:
        params = {name: p.copy() for name, p in init.items()}
        rule = mr.optim.SGD(lr=0.5, weight_decay=0.25)
        opt = mr.ShardedOptimizer(
            comm, params, rule, groups=[mr.sharded.Group(members, weight_decay=0.0)], bucket_bytes=48
        )
        opt.step({name: np.zeros(s, np.float32) for name, s in shapes.items()})
        return list(params.values())

    w1, b1, w2, b2 = same(on_ranks(3, body))
    np.testing.assert_array_equal(b1, init["b1"])
    np.testing.assert_array_equal(b2, init["b2"])
    np.testing.assert_array_equal(w1, init["w1"] * np.float32(0.875))
    np.testing.assert_array_equal(w2, init["w2"] * np.float32(0.875))


@pytest.mark.parametrize(
    "rule", [mr.optim.SGD(lr=0.1, momentum=0.9), mr.optim.LARS(lr=0.5), mr.optim.LAMB(lr=0.05)], ids=lambda r: r.name
)
def test_groups_have_hyper_parameters_of_their_own(on_ranks: Any, rule: Any) -> None:
    """Two layers in one bucket, the shards' edges inside them (fairscale #697)."""
    rng = np.random.default_rng(4)
    shapes = [(11,), (3, 5), (7,)]
    init, grads = tensors(rng, shapes), [[tensors(rng, shapes) for _ in range(2)] for _ in range(3)]
    own: dict[str, Any] = {"lr": 0.25, "weight_decay": 0.0} | ({} if rule.name == "SGD" else {"adapt": False})

    def body(comm: Any) -> Any:
        params = [p.copy() for p in init]
        opt = mr.ShardedOptimizer(comm, params, rule, groups=[mr.sharded.Group([0, 2], **own)], order="rank")
        for step in grads:
            opt.step(step[comm.rank])
        return params

    expected = Replicated(init, rule, np.float64, overrides={0: own, 2: own})
    for step in grads:
        expected.step(averaged(step))
    for a, w in zip(same(on_ranks(2, body)), expected.w, strict=True):
        np.testing.assert_allclose(a, w, rtol=2e-6, atol=2e-6)


# --- micro-batches, hooks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("hooks", [False, True])
def test_micro_batches_are_one_batch(on_ranks: Any, overlap: bool, kind: str, hooks: bool) -> None:
    """Reduced once, with all micro-batches in it (InfiniTrain #213, apex #708); only means divide (torchft #286)."""
    rng = np.random.default_rng(6)
    init = whole_numbers(rng, SHAPES)
    batches = [[whole_numbers(rng, SHAPES) for _ in range(2)] for _ in range(3)]
    rule = mr.optim.SGD(lr=0.5)

    def body(comm: Any) -> Any:
        params = [p.copy() for p in init]
        opt = mr.ShardedOptimizer(comm, params, rule, accumulation=kind, overlap=overlap, bucket_bytes=1 << 20)
        calls = comm._engine.executor.calls
        calls.clear()
        for _ in range(2):  # the second step must not see the first one's sums
            opt.accumulate(batches[0][comm.rank])
            opt.accumulate(batches[1][comm.rank])
            if hooks:
                for i in reversed(range(len(SHAPES))):
                    opt.backward_hook(i)(batches[2][comm.rank][i])
                opt.step()
            else:
                opt.step(batches[2][comm.rank])
        assert calls == ["reduce_scatter", "all_gather"] * 2
        return params

    total = [sum(np.asarray(b[r][i], np.float64) for b in batches for r in range(2)) / 2 for i in range(len(SHAPES))]
    scale = 1 / 3 if kind == "mean" else 1.0
    for a, p, g in zip(same(on_ranks(2, body)), init, total, strict=True):
        np.testing.assert_allclose(a, p - 2 * 0.5 * scale * g, rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 1000), size=st.integers(1, 4), overlap=st.booleans(), bucket_bytes=st.sampled_from([16, 64]),
       clip=st.sampled_from([None, 1.0]), aliased=st.booleans())  # fmt: skip
def test_hooks_in_any_order_do_what_step_does(
    on_ranks: Any, seed: int, size: int, overlap: bool, bucket_bytes: int, clip: float | None, aliased: bool
) -> None:
    rng = np.random.default_rng(seed)
    init = tensors(rng, SHAPES)
    grads = [[tensors(rng, SHAPES) for _ in range(size)] for _ in range(2)]
    rule = mr.optim.Adam(lr=0.1)

    def body(comm: Any, hooks: bool) -> Any:
        params: Any = mr.sharded.allocate(comm, SHAPES) if aliased else [np.empty_like(p) for p in init]
        for p, values in zip(params, init, strict=True):
            p[...] = values
        opt = mr.ShardedOptimizer(
            comm, params, rule, order="rank", overlap=overlap, bucket_bytes=bucket_bytes, clip_norm=clip
        )
        order = np.random.default_rng(seed * 10 + comm.rank)  # ranks need not hand in in the same order
        for step in grads:
            if not hooks:
                opt.step(step[comm.rank])
                continue
            before = [np.array(p) for p in params]
            for i in order.permutation(len(SHAPES)):
                opt.backward_hook(int(i), step[comm.rank][i])
                # The backward pass still reads the weights.
                assert all((a == b).all() for a, b in zip(before, params, strict=True))
            opt.step()
        return [np.array(p) for p in params]

    a = same(on_ranks(size, lambda comm: body(comm, hooks=True)))
    b = same(on_ranks(size, lambda comm: body(comm, hooks=False)))
    same([a, b])


def test_a_step_happens_once(on_ranks: Any) -> None:
    """Finishing twice is an error, not a second reduction (Megatron-LM #775)."""

    def body(comm: Any) -> None:
        opt = mr.ShardedOptimizer(comm, {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}, mr.optim.SGD())
        with pytest.raises(mr.ArgumentError, match=r"step: got no gradients, wanted step\(grads\)"):
            opt.step()
        one = np.ones(4, np.float32)
        opt.backward_hook("a", one)
        with pytest.raises(mr.ArgumentError, match="step: got no gradient of 1 parameters \\(b\\), wanted one of each"):
            opt.step()
        with pytest.raises(mr.ArgumentError, match="got the gradient of parameter 'a' again, wanted one a step"):
            opt.backward_hook(0, one)
        with pytest.raises(mr.ArgumentError, match="step: got gradients while those of 1 parameters were handed in"):
            opt.step([one, one])
        with pytest.raises(mr.ArgumentError, match="accumulate: got gradients while those of 1 parameters"):
            opt.accumulate([one, one])
        opt.backward_hook("b", one)
        opt.step()
        with pytest.raises(mr.ArgumentError, match="step: got no gradients"):
            opt.step()
        assert opt.steps == 1

    on_ranks(1, body)


def test_a_bad_gradient_list_of_one_rank_ends_the_others_wait(on_ranks: Any) -> None:
    def body(comm: Any) -> None:
        opt = mr.ShardedOptimizer(comm, [np.zeros(4, np.float32)], mr.optim.SGD())
        with pytest.raises(mr.ArgumentError if comm.rank == 0 else mr.MismatchError):
            opt.step([np.zeros(3 if comm.rank == 0 else 4, np.float32)])

    on_ranks(2, body)


# --- the wire, and memory -------------------------------------------------------------------------------------------


def test_small_updates_of_16_bit_weights_are_kept(on_ranks: Any) -> None:
    """100 steps of ``x - 6e-4 x`` leave a bfloat16 at 1 without a master (pytorch/ao #1124); 0.9417 is right."""

    def body(comm: Any) -> Any:
        params = [np.ones(3, TYPES["bfloat16"])]
        opt = mr.ShardedOptimizer(comm, params, mr.optim.SGD(lr=6e-4, weight_decay=1.0))
        for _ in range(100):
            opt.step([np.zeros(3, np.float32)])
        return params

    got = same(on_ranks(2, body))[0]
    assert (got == np.float32((1 - 6e-4) ** 100).astype(TYPES["bfloat16"])).all()


@given(counts=st.lists(st.integers(0, 300), max_size=9), size=st.integers(1, 5), bucket_bytes=st.integers(1, 2000))
def test_state_is_a_share_of_the_elements(on_ranks: Any, counts: Any, size: int, bucket_bytes: int) -> None:
    """Each moment has ceil(n / size) elements, and buckets are as many as the bytes need, whatever the tensors are."""

    def body(comm: Any) -> Any:
        params = [np.zeros(n, np.float32) for n in counts]
        opt = mr.ShardedOptimizer(comm, params, mr.optim.Adam(), bucket_bytes=bucket_bytes)
        one = mr.ShardedOptimizer(comm, [np.zeros(sum(counts), np.float32)], mr.optim.Adam(), bucket_bytes=bucket_bytes)
        assert opt.n_buckets == one.n_buckets
        return opt.state_bytes()

    share = 4 * -(-sum(counts) // size)
    for found in on_ranks(size, body):
        if counts:
            assert found == {"first": share, "second": share, "master": share}


@pytest.mark.parametrize(
    "rule", [mr.optim.Adam(), mr.optim.LARS(), mr.optim.LAMB(), mr.optim.Adafactor()], ids=lambda r: r.name
)
def test_more_tensors_make_no_more_collectives(on_ranks: Any, rule: Any) -> None:
    def body(comm: Any) -> Any:
        calls = comm._engine.executor.calls
        found = []
        for shapes in ([(96,)], [(4, 4)] * 6, [(1,)] * 96):
            opt = mr.ShardedOptimizer(
                comm, [np.ones(s, np.float32) for s in shapes], rule, bucket_bytes=128, clip_norm=1.0
            )
            calls.clear()
            opt.step([np.ones(s, np.float32) for s in shapes])
            found.append(list(calls))
        return found

    for found in on_ranks(2, body):
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 3 + 3 + 1 + (rule.name in ("LAMB", "Adafactor"))


def test_a_16_bit_gather_moves_three_quarters_of_the_bytes(on_ranks: Any) -> None:
    """Of a float32 all-reduce, which is a reduce-scatter and an all-gather of all elements."""

    def body(comm: Any) -> int:
        moved = 0
        prepare = comm._engine.executor.prepare

        def counting(request: Any, count: int, counts: Any = None) -> Any:
            nonlocal moved
            if request.collective in ("reduce_scatter", "all_gather") and request.dtype.name != "uint8":
                moved += count * request.dtype.itemsize
            return prepare(request, count, counts)

        comm._engine.executor.prepare = counting
        opt = mr.ShardedOptimizer(
            comm, [np.ones(1000, np.float32)], mr.optim.SGD(), weight_wire="bfloat16", overlap=False
        )
        opt.step([np.ones(1000, np.float32)])
        return moved

    assert on_ranks(4, body) == [6000] * 4  # 0.75 of 2 * 4000


# --- subgroups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("size", "subgroup"), [(4, 2), (4, 1), (3, 3), (2, "node")])
def test_a_hybrid_shards_inside_and_replicates_across(on_ranks: Any, size: int, subgroup: Any, overlap: bool) -> None:
    rng = np.random.default_rng(8)
    init = whole_numbers(rng, SHAPES)
    grads = [[whole_numbers(rng, SHAPES) for _ in range(size)] for _ in range(2)]
    rule = mr.optim.LAMB(lr=0.125)

    def body(comm: Any) -> Any:
        params = [p.copy() for p in init]
        opt = mr.ShardedOptimizer(
            comm, params, rule, subgroup=subgroup, overlap=overlap, bucket_bytes=64, skip_nonfinite=True
        )
        for step in grads:
            opt.step(step[comm.rank])
        share = 4 * -(-sum(p.size for p in init) // opt.n_shards)
        assert opt.state_bytes()["first"] == share
        assert opt.n_shards == (subgroup if subgroup != "node" else size)
        opt.close()
        return params

    expected = Replicated(init, rule, np.float64)
    for step in grads:
        expected.step([np.asarray(np.mean([r[i] for r in step], axis=0, dtype=np.float64)) for i in range(len(SHAPES))])
    for a, w in zip(same(on_ranks(size, body)), expected.w, strict=True):
        np.testing.assert_allclose(a, w, rtol=3e-6, atol=3e-6)
