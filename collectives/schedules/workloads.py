"""One training step of a network on many GPUs: compute, gradients, update, and what of them overlaps.

::

    replicated   forward | backward |----------------- all_reduce of buckets ---|  update of all
    sharded      forward | backward |----- reduce_scatter ---|  update of 1/N   |  all_gather of weights
    overlapped   buckets start as soon as backward has filled them; gathered weights are waited for layer by layer by
                 the next forward pass
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multiring.collectives.schedules.networks import NETWORKS, Network

__all__ = ["Assumption", "Bucket", "Step", "Workload", "buckets_of", "efficiency", "step_time", "workload"]

BACKWARD_OF_RESNET50_US = 120_000.0
"""Of 32 images on a P100. Goyal et al. 2017, section 4: backprop takes 120 ms."""
RESNET50_IMAGES = 32
BACKWARD_PER_FORWARD = 2.0
"""Each layer multiplies twice going back, for its input's and its weights' gradients, and once going forth."""
MEMORY_GBS = 732.0
"""Of a P100 with 16 GB."""
BUCKET_BYTES = 25 << 20
PriceOf = Callable[[float], float]
"""Microseconds of a collective for bytes of the whole vector."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a prediction rests on.

    Attributes
    ----------
    what, value, source : str
        The source says ``assumed`` where there is none.
    """

    what: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A training step on one GPU.

    Attributes
    ----------
    name : str
    network : Network
    samples : int
        Of one GPU in a step, however many GPUs there are.
    forward_us, backward_us : float
        Compute of one GPU in a step.
    update_us : float
        Of all weights.
    gradient_bytes, weight_bytes : int
        Of one parameter, on the way.
    bucket_bytes : int
        A bucket is full when it has so many bytes of gradients.
    assumptions : tuple of Assumption
    """

    name: str
    network: Network
    samples: int
    forward_us: float
    backward_us: float
    update_us: float
    gradient_bytes: int
    weight_bytes: int
    bucket_bytes: int
    assumptions: tuple[Assumption, ...]

    @property
    def alone_us(self) -> float:
        """A step on one GPU."""
        return self.forward_us + self.backward_us + self.update_us


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that travel together.

    Attributes
    ----------
    n_parameters : int
    ready_us : float
        When backward has filled it, after backward began.
    forward_us : float
        What the next forward pass computes with its weights, in its place.
    """

    n_parameters: int
    ready_us: float
    forward_us: float


@dataclass(frozen=True, slots=True)
class Step:
    """A predicted step.

    Attributes
    ----------
    overlap, sharded : bool
    step_us : float
    communication_us : float
        While something travels.
    exposed_us : float
        What of that the computing waits for.
    update_us : float
    """

    overlap: bool
    sharded: bool
    step_us: float
    communication_us: float
    exposed_us: float
    update_us: float


@dataclass(frozen=True, slots=True)
class _Training:
    samples: int
    state_bytes: int
    optimizer: str
    batch_source: str


_SGD = "SGD with momentum reads g, v, w and writes v, w"
_ADAM = "Adam reads g, m, v, w and writes m, v, w"
_TRAINING = {
    "resnet50": _Training(RESNET50_IMAGES, 20, _SGD, "Goyal et al. 2017: 8192 images on 256 GPUs"),
    "resnet101": _Training(RESNET50_IMAGES, 20, _SGD, "assumed: as for ResNet-50"),
    "transformer-big": _Training(125, 28, _ADAM, "assumed"),
    "gnmt": _Training(128, 28, _ADAM, "assumed"),
    "ncf": _Training(1 << 17, 28, _ADAM, "NVIDIA's MLPerf v0.5 submission: 1048576 on a DGX-1 of 8 GPUs"),
    "bert-large": _Training(8, 28, _ADAM, "assumed"),
}


def workload(
    name: str,
    *,
    gradient: tuple[str, int] = ("float32", 4),
    weights: tuple[str, int] = ("float32", 4),
    bucket_bytes: int = BUCKET_BYTES,
    compute_us: float | None = None,
    update_fraction: float | None = None,
) -> Workload:
    """Return a workload and everything that is assumed of it.

    Parameters
    ----------
    name : str
        A key of :data:`~multiring.collectives.schedules.networks.NETWORKS`.
    gradient, weights : tuple of (str, int)
        The element types that travel, and their bytes.
    bucket_bytes : int
    compute_us : float, optional
        Forward and backward of one GPU, if it is known better.
    update_fraction : float, optional
        The update's share of a step on one GPU, below 1, if it is known better.
    """
    network, training = NETWORKS[name](), _TRAINING[name]
    rate = _sustained_flops_per_us()
    given = "given"
    if compute_us is None:
        forward_us = network.forward_flops * training.samples / rate
        source = (
            f"backward of ResNet-50: Goyal et al. 2017, 120 ms for 32 images on a P100, which makes {rate / 1e6:.2f} "
            "TFLOP/s; forward assumed to be half of backward"
            + ("" if name == "resnet50" else "; other networks assumed to run at that rate")
        )
    else:
        forward_us, source = compute_us / (1 + BACKWARD_PER_FORWARD), f"{given}; forward assumed to be half of backward"
    compute_us = forward_us * (1 + BACKWARD_PER_FORWARD)
    if update_fraction is None:
        update_us = network.n_parameters * training.state_bytes / (MEMORY_GBS * 1000)
        update_source = (
            f"{training.state_bytes} bytes of memory traffic per parameter ({training.optimizer}, float32), derived; "
            f"{MEMORY_GBS:g} GB/s of a P100: assumed, its data sheet's peak"
        )
    else:
        update_us = compute_us * update_fraction / (1 - update_fraction)
        update_source = given
    share = update_us / (compute_us + update_us)
    shown = (
        Assumption("parameters", f"{network.n_parameters} in {len(network.layers)} layers", network.source),
        Assumption("batch", f"{training.samples} samples per GPU; a sample: {network.sample}", training.batch_source),
        Assumption(
            "compute", f"{forward_us / 1000:.2f} ms forward, {(compute_us - forward_us) / 1000:.2f} ms backward", source
        ),
        Assumption("time of a layer", "by its operations", "assumed"),
        Assumption("update", f"{update_us / 1000:.3f} ms, {100 * share:.2f} % of a step on one GPU", update_source),
        Assumption(
            "gradients",
            f"{gradient[0]}, {network.n_parameters * gradient[1] / 1e6:.1f} MB, dense",
            "derived" if name != "ncf" else "derived; dense gradients of embeddings: assumed",
        ),
        Assumption("gathered weights", f"{weights[0]}, where the update is sharded", "assumed"),
        Assumption(
            "buckets",
            f"{bucket_bytes / (1 << 20):g} MiB, whole layers in reverse order; one for all without overlap",
            "torch's DDP: bucket_cap_mb=25; its small first bucket is left out"
            if bucket_bytes == BUCKET_BYTES
            else given,
        ),
        Assumption(
            "overlap",
            "a full bucket starts at once, one after another; gathered weights overlap the next forward pass; the "
            "update waits for all gradients; communication slows no computing",
            "assumed",
        ),
        Assumption("left out", "reading data, uneven ranks, launches of kernels", "assumed to take no time"),
    )
    return Workload(
        name,
        network,
        training.samples,
        forward_us,
        compute_us - forward_us,
        update_us,
        gradient[1],
        weights[1],
        bucket_bytes,
        shown,
    )


def _sustained_flops_per_us() -> float:
    backward = BACKWARD_PER_FORWARD * NETWORKS["resnet50"]().forward_flops * RESNET50_IMAGES
    return backward / BACKWARD_OF_RESNET50_US


def buckets_of(work: Workload) -> tuple[Bucket, ...]:
    """Fill buckets with layers in the order in which backward reaches them; the last may be smaller."""
    flops = work.network.forward_flops
    buckets: list[Bucket] = []
    n_parameters, share, done = 0, 0.0, 0.0
    for layer in reversed(work.network.layers):
        n_parameters += layer.n_parameters
        share += layer.forward_flops / flops
        if n_parameters * work.gradient_bytes >= work.bucket_bytes:
            done += share
            buckets.append(Bucket(n_parameters, done * work.backward_us, share * work.forward_us))
            n_parameters, share = 0, 0.0
    if n_parameters or share:
        buckets.append(Bucket(n_parameters, work.backward_us, share * work.forward_us))
    return tuple(buckets)


def step_time(
    work: Workload,
    n_ranks: int,
    overlap: bool,
    sharded: bool,
    all_reduce: PriceOf,
    reduce_scatter: PriceOf,
    all_gather: PriceOf,
) -> Step:
    """Predict one step.

    Parameters
    ----------
    work : Workload
    n_ranks : int
        GPUs; one alone communicates nothing.
    overlap : bool
        Whether communication overlaps computing; otherwise one call carries all, after backward.
    sharded : bool
        Whether each GPU updates its share of the weights only.
    all_reduce, reduce_scatter, all_gather : callable
        Microseconds by bytes of the whole vector.
    """
    buckets = buckets_of(work) if overlap else (Bucket(work.network.n_parameters, work.backward_us, work.forward_us),)
    collect = reduce_scatter if sharded else all_reduce
    if n_ranks == 1:
        collect = all_gather = _nothing
    travelling_us, backward_us = 0.0, 0.0
    for bucket in buckets:
        taken_us = collect(bucket.n_parameters * work.gradient_bytes)
        backward_us = max(backward_us, bucket.ready_us) + taken_us
        travelling_us += taken_us
    backward_us = max(backward_us, work.backward_us)
    update_us = work.update_us / (n_ranks if sharded else 1)
    forward_us = work.forward_us
    if sharded:
        gathered_us, forward_us = 0.0, 0.0
        for bucket in reversed(buckets):
            gathered_us += all_gather(bucket.n_parameters * work.weight_bytes)
            forward_us = max(forward_us, gathered_us) + bucket.forward_us
        travelling_us += gathered_us
    step_us = forward_us + backward_us + update_us
    exposed_us = step_us - work.forward_us - work.backward_us - update_us
    return Step(overlap, sharded, step_us, travelling_us, exposed_us, update_us)


def efficiency(work: Workload, step: Step) -> float:
    """Return a step's time on one GPU over its time on many, each with the same batch: 1 is perfect scaling."""
    return work.alone_us / step.step_us


def _nothing(nbytes: float) -> float:
    del nbytes
    return 0.0
