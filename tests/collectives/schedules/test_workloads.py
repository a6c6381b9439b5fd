"""Networks have the sizes that are known of them, and a training step is what its parts add up to."""

from __future__ import annotations

import math

import pytest

from multiring.collectives.schedules.networks import NETWORKS, Layer, Network
from multiring.collectives.schedules.simulate import Price
from multiring.collectives.schedules.training import Machine, steps
from multiring.collectives.schedules.workloads import Workload, buckets_of, efficiency, step_time, workload


@pytest.mark.parametrize(
    ("name", "n_parameters"),
    [
        # torchvision: num_params of resnet50 and resnet101.
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        # 24 layers of 12 n^2 + 13 n, embeddings, pooler and heads.
        ("bert-large", 24 * (12 * 1024**2 + 13 * 1024) + (30522 + 514 + 2) * 1024 + 2 * 1024**2 + 6 * 1024 + 30524),
        # 12 n^2 and 16 n^2 in the layers of the two sides.
        ("transformer-big", 6 * (12 + 16) * 1024**2 + 37000 * 1024 + 6 * (13 + 19) * 1024),
        ("ncf", (138493 + 26744) * (64 + 128) + 256 * 256 + 256 * 128 + 128 * 64 + 448 + 129),
    ],
)
def test_networks_have_their_parameters(name: str, n_parameters: int) -> None:
    assert NETWORKS[name]().n_parameters == n_parameters


def test_operations_of_resnets() -> None:
    # torchvision counts a multiplication and an addition once: 4.09 and 7.80 GFLOPS.
    assert NETWORKS["resnet50"]().forward_flops / 2e9 == pytest.approx(4.09, abs=0.005)
    assert NETWORKS["resnet101"]().forward_flops / 2e9 == pytest.approx(7.80, abs=0.005)


def test_resnet50_takes_what_was_published() -> None:
    work = workload("resnet50")
    assert work.backward_us == pytest.approx(120_000)
    assert work.forward_us == pytest.approx(60_000)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_assumption_has_a_source(name: str) -> None:
    work = workload(name)
    assert {"parameters", "batch", "compute", "update", "buckets", "overlap"} <= {a.what for a in work.assumptions}
    assert all(a.value and a.source for a in work.assumptions)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20, 25 << 20, 1 << 40])
def test_buckets_hold_every_gradient_once(name: str, bucket_bytes: int) -> None:
    work = workload(name, bucket_bytes=bucket_bytes)
    buckets = buckets_of(work)
    assert sum(bucket.n_parameters for bucket in buckets) == work.network.n_parameters
    ready = [bucket.ready_us for bucket in buckets]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(work.backward_us)
    assert sum(bucket.forward_us for bucket in buckets) == pytest.approx(work.forward_us)
    assert all(bucket.n_parameters * 4 >= bucket_bytes for bucket in buckets[:-1])


def small(update_us: float = 8.0) -> Workload:
    """Two layers of 1000 parameters, 10 us forward and 20 us backward each, a bucket for each."""
    network = Network((Layer("a", 1000, 1.0), Layer("b", 1000, 1.0)), "sample", "")
    return Workload("small", network, 1, 20.0, 40.0, update_us, 4, 2, 4000, ())


def test_steps_by_hand() -> None:
    def run(overlap: bool, sharded: bool) -> float:
        prices = (lambda n: n / 100, lambda n: n / 200, lambda n: n / 200)
        return step_time(small(), 4, overlap, sharded, *prices).step_us

    # All at once: 80 us for 8000 bytes of gradients, 40 scattered, 20 for 4000 bytes of weights.
    assert run(False, False) == 20 + 40 + 80 + 8
    assert run(False, True) == 20 + 40 + 40 + 2 + 20
    # Layer b is ready after 20 us and takes 40; layer a, ready after 40, waits for it and ends at 100.
    assert run(True, False) == 20 + 100 + 8
    # Scattered: b from 20 to 40, a from 40 to 60. Gathered: a at 10, then 10 us of forward; b at 20, then 10 us.
    assert run(True, True) == 60 + 2 + 30


def test_one_gpu_waits_for_nobody() -> None:
    for overlap in (False, True):
        for sharded in (False, True):
            step = step_time(small(), 1, overlap, sharded, *[lambda n: 1e9] * 3)
            assert (step.step_us, step.exposed_us, step.communication_us) == (68.0, 0.0, 0.0)
            assert efficiency(small(), step) == 1.0


@pytest.mark.parametrize("name", NETWORKS)
def test_sharding_saves_what_others_update(name: str) -> None:
    work = workload(name)
    line = [Price("ring", 10.0, 1e-4)]
    half = [Price("ring", 5.0, 0.5e-4)]
    machine = Machine(4, 16, {"all_reduce": line, "reduce_scatter": half, "all_gather": half})
    rows = {(row.step.overlap, row.step.sharded): row for row in steps(work, machine)}
    saved_us = rows[False, False].step.step_us - rows[False, True].step.step_us
    assert saved_us == pytest.approx(work.update_us * 15 / 16)
    for row in rows.values():
        assert 0 <= row.step.exposed_us <= row.step.communication_us * (1 + 1e-9)
        assert 0 < row.efficiency < 1 or row.step.sharded
        assert row.samples_per_second == pytest.approx(work.samples * 16 / row.step.step_us * 1e6)
    assert rows[True, False].step.exposed_us <= rows[False, False].step.exposed_us + 10.0 * len(buckets_of(work))


def test_the_cheapest_algorithm_depends_on_the_size() -> None:
    machine = Machine(1, 4, {"all_reduce": [Price("short", 1.0, 1.0), Price("long", 10.0, 0.1)]})
    assert machine.cheapest("all_reduce", 9).algorithm == "short"
    assert machine.cheapest("all_reduce", 11).algorithm == "long"


def test_what_is_known_better_is_taken() -> None:
    work = workload("resnet50", compute_us=90_000, update_fraction=0.1, gradient=("float16", 2))
    assert [work.forward_us, work.backward_us] == pytest.approx([30_000, 60_000])
    assert work.update_us / work.alone_us == pytest.approx(0.1)
    assert math.isclose(work.alone_us, 100_000)
    assert "float16, 51.1 MB" in {a.what: a.value for a in work.assumptions}["gradients"]
    assert {a.what: a.source for a in work.assumptions}["update"] == "given"
