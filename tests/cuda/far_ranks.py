"""A program for mpiexec: simulated GPUs on virtual nodes, ``LAYOUT`` says which rank is where."""

from __future__ import annotations

import os
import sys

from mpi4py import MPI

from tests.cuda.device_ranks import Both, executor_of
from tests.cuda.driver_cases import some


def main(layout: str) -> None:
    import multiring as mr

    world = MPI.COMM_WORLD
    os.environ["MULTIRING_HOST_ID"] = layout[world.rank]
    both = Both(mr.Communicator.from_mpi(world), mr.Communicator.from_mpi(world, device="cuda", timeout=60.0))
    assert (both.cuda.n_nodes, both.cuda.device) == (len(set(layout)), "cuda")
    assert executor_of(both.cuda).mode == "stepped"
    # The setting of rank 0 counts for all.
    os.environ["MULTIRING_CUDA_MODE"] = "fused" if world.rank == 0 else "stepped"
    try:
        mr.Communicator.from_mpi(world, device="cuda")
        raise AssertionError("fused kernels between nodes")
    except mr.ArgumentError as error:
        assert "MULTIRING_CUDA_MODE: got 'fused' for GPUs of several nodes, wanted 'stepped'" in str(error)  # noqa: PT017
    del os.environ["MULTIRING_CUDA_MODE"]
    for name, case in some(world.size, 4).items():
        try:
            case(both)
        except BaseException as error:
            raise RuntimeError(f"rank {world.rank}, {name}") from error
    both.cuda.close()
    both.host.close()
    sys.stdout.write(f"rank {world.rank} is done\n")


if __name__ == "__main__":
    main(sys.argv[1])
