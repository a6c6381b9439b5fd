"""Which launcher started this process, read from the environment alone: nothing is imported and nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from multiring.errors import LaunchError

__all__ = ["Launcher", "detect"]

MPI_KINDS = ("openmpi", "pmi")


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the launcher said about this process.

    Attributes
    ----------
    kind : str
        ``"openmpi"`` (mpiexec of Open MPI), ``"pmi"`` (hydra: MPICH and Intel MPI; srun with PMI-2), ``"torchrun"``,
        ``"srun"``, ``"launch"`` (``multiring launch``), ``"env"`` (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set
        by hand) or ``"alone"``.
    rank, size : int
        This rank and the number of ranks of the job.
    local_rank, local_size : int or None
        The same among the ranks of this node; None where the launcher does not say. It is never guessed: a guess of 0
        on every rank gives them all the same GPU.
    job_key : str
        Tells this job from any other of the same user on this node; empty where the launcher gives nothing unique.
    over_mpi : bool
        Whether the ranks find each other through MPI.
    """

    kind: str
    rank: int
    size: int
    local_rank: int | None = None
    local_size: int | None = None
    job_key: str = ""
    over_mpi: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise LaunchError(
                f"{self.kind}: got rank {self.rank} of {self.size}, wanted 0 <= rank < size; "
                "unset the launcher's variables that an earlier job left in the environment"
            )


def detect(environ: Mapping[str, str]) -> Launcher:
    """Tell which launcher started this process.

    MPI's variables come first: a program under mpiexec may itself set the variables of the others. Then the launchers
    that set their own names, then the names that many set. A stale ``PMI_RANK`` (in a child of an MPI rank, or a
    container's environment) without the socket that hydra hands over means nothing.

    Parameters
    ----------
    environ : mapping of str to str
        The environment, usually ``os.environ``.

    Returns
    -------
    Launcher
        The launcher; of kind ``"alone"`` where there is none.

    Raises
    ------
    LaunchError
        A launcher was seen, but something that it must give is missing or makes no sense: half a job description
        must not become a job of one rank.

    Notes
    -----
    Variables as set by Open MPI 5, hydra of MPICH 5, torchrun of PyTorch 2 (all seen live) and Slurm (from its
    documentation of srun).
    """
    for reader in (_openmpi, _pmi, _torchrun, _srun, _launch, _generic):
        found = reader(environ)
        if found:
            return found
    return Launcher("alone", 0, 1, 0, 1)


def _openmpi(environ: Mapping[str, str]) -> Launcher | None:
    if "OMPI_COMM_WORLD_RANK" not in environ or not {"PMIX_RANK", "OMPI_COMM_WORLD_SIZE"} & environ.keys():
        return None
    return Launcher(
        "openmpi",
        _needed(environ, "OMPI_COMM_WORLD_RANK"),
        _needed(environ, "OMPI_COMM_WORLD_SIZE"),
        _known(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        _known(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        environ.get("PMIX_NAMESPACE", ""),
        over_mpi=True,
    )


def _pmi(environ: Mapping[str, str]) -> Launcher | None:
    if "PMI_RANK" not in environ or not {"PMI_FD", "PMI_PORT"} & environ.keys():
        return None
    return Launcher(
        "pmi",
        _needed(environ, "PMI_RANK"),
        _needed(environ, "PMI_SIZE"),
        _known(environ, "MPI_LOCALRANKID", "SLURM_LOCALID"),
        _known(environ, "MPI_LOCALNRANKS"),
        environ.get("PMI_JOBID", ""),
        over_mpi=True,
    )


def _torchrun(environ: Mapping[str, str]) -> Launcher | None:
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    # The run id is "none" unless given, and a restarted job keeps it: the port and the count tell jobs apart.
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    return _ranks_of("torchrun", environ, names)


def _srun(environ: Mapping[str, str]) -> Launcher | None:
    if not {"SLURM_STEP_ID", "SLURM_PROCID"} <= environ.keys():
        return None
    size = _known(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    if size is None:
        return None
    one_node = _known(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES") == 1
    return Launcher(
        "srun",
        _needed(environ, "SLURM_PROCID"),
        size,
        _known(environ, "SLURM_LOCALID"),
        size if one_node else None,
        f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}.{environ.get('SLURM_RESTART_COUNT', '0')}",
        over_mpi="PMIX_RANK" in environ or not one_node,
    )


def _launch(environ: Mapping[str, str]) -> Launcher | None:
    names = ("MULTIRING_RANK", "MULTIRING_SIZE", "MULTIRING_JOB")
    if not any(name in environ for name in names):
        return None
    _require_all(environ, names)
    return Launcher(
        "launch",
        _needed(environ, "MULTIRING_RANK"),
        _needed(environ, "MULTIRING_SIZE"),
        _known(environ, "MULTIRING_LOCAL_RANK"),
        _known(environ, "MULTIRING_LOCAL_SIZE"),
        environ["MULTIRING_JOB"],
    )


def _generic(environ: Mapping[str, str]) -> Launcher | None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = [name for name in names if name in environ]
    # A RANK or an address by itself says nothing: many programs have one. All but the size say: one of several.
    if "WORLD_SIZE" not in given and len(given) < 3:
        return None
    if "WORLD_SIZE" in given and len(given) < 4 and _needed(environ, "WORLD_SIZE") == 1:
        return None
    _require_all(environ, names)
    return _ranks_of("env", environ, ("MASTER_ADDR", "MASTER_PORT"))


def _require_all(environ: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Refuse a description of a job of which a part is missing."""
    missing = [name for name in names if name not in environ]
    if missing:
        got = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
        raise LaunchError(
            f"environment: got {got} without {' and '.join(missing)}, wanted all of {', '.join(names)}; set what is "
            "missing, start the program with its launcher (mpiexec, srun, torchrun, multiring launch), or unset them "
            "all to run alone"
        )


def _ranks_of(kind: str, environ: Mapping[str, str], key_names: tuple[str, ...]) -> Launcher:
    """Read the names that torch's launchers share."""
    return Launcher(
        kind,
        _needed(environ, "RANK"),
        _needed(environ, "WORLD_SIZE"),
        _known(environ, "LOCAL_RANK"),
        _known(environ, "LOCAL_WORLD_SIZE"),
        "|".join(environ.get(name, "") for name in key_names),
    )


def _needed(environ: Mapping[str, str], name: str) -> int:
    """Return a number that the launcher must give."""
    text = environ.get(name)
    if text is None or not text.strip().isdecimal():
        got = "nothing" if text is None else repr(text)
        raise LaunchError(
            f"environment variable {name}: got {got}, wanted a number; start the program with its launcher "
            "(mpiexec, srun, torchrun, multiring launch) or unset the launcher's variables to run alone"
        )
    return int(text)


def _known(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of some numbers that is there, or None."""
    for name in names:
        text = environ.get(name, "").strip()
        if text.isdecimal():
            return int(text)
    return None
