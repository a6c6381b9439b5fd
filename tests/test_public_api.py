"""What ``import multiring`` gives."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import multiring as mr

DESIGN = {
    "all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter",
    "reduce_scatter_v", "all_gather_v", "all_to_all_v", "send", "recv", "send_recv", "barrier", "all_reduce_many",
    "group", "prepare", "split", "dup", "empty", "register", "explain", "check", "abort", "close", "raw", "from_mpi",
    "rank", "size", "local_rank", "local_size", "node", "n_nodes", "device", "topology", "__enter__", "__exit__",
}  # fmt: skip


def test_every_name_is_there_and_listed() -> None:
    for name in mr.__all__:
        assert getattr(mr, name) is not None
    assert set(mr.__all__) <= set(dir(mr))
    assert {"init", "Communicator", "premul_sum", "reduction", "MultiringError", "__version__"} <= set(mr.__all__)
    with pytest.raises(AttributeError, match="module 'multiring' has no attribute 'nothing'"):
        _ = mr.nothing


def test_the_communicator_has_every_method_of_the_contract() -> None:
    assert set(dir(mr.Communicator)) >= DESIGN


@pytest.mark.parametrize("name", sorted(DESIGN - {"__enter__", "__exit__"}))
def test_every_method_says_what_it_does(name: str) -> None:
    text: Any = getattr(mr.Communicator, name).__doc__
    assert text
    assert len(text.splitlines()[0]) > 10


def test_errors_are_built_ins_too() -> None:
    for error, base in (
        (mr.ArgumentError, ValueError),
        (mr.ArgumentTypeError, TypeError),
        (mr.MismatchError, ValueError),
        (mr.PeerLostError, ConnectionError),
        (mr.CollectiveTimeout, TimeoutError),
        (mr.CommunicatorClosed, RuntimeError),
    ):
        assert issubclass(error, mr.MultiringError)
        assert issubclass(error, base)


def test_import_is_light() -> None:
    code = (
        "import sys, multiring; "
        "late = {'numpy', 'numba', 'mpi4py', 'ml_dtypes', 'multiring.collectives'} & set(sys.modules); "
        "assert not late, late"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_communicator_loads_no_compiler() -> None:
    code = (
        "import sys; from multiring import Communicator; "
        "late = {'numba', 'mpi4py', 'cupy', 'torch'} & set(sys.modules); assert not late, late"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("gpu",), "device: got 'gpu', wanted one of 'auto', 'host', 'cuda'"),
        (("host", 0), "init: timeout: got 0, wanted a finite number of seconds above 0"),
        (("host", None), "init: timeout: got None, wanted a finite number of seconds"),
    ],
)
def test_init_checks_its_arguments(arguments: Any, match: str) -> None:
    with pytest.raises(mr.MultiringError, match=match):
        mr.init(*arguments)


@pytest.mark.shm
def test_alone_it_is_one_rank() -> None:
    code = (
        "import numpy as np, multiring as mr\n"
        "with mr.init(device='host') as comm:\n"
        "    x = np.arange(4.0)\n"
        "    assert comm.all_reduce(x) is x\n"
        "    assert (comm.rank, comm.size, comm.device) == (0, 1, 'host')\n"
        "    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reductions() -> None:
    assert mr.premul_sum(0.5).scale == 0.5
    assert mr.reduction(np.hypot).function is np.hypot
