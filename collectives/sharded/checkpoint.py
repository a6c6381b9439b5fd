"""Checkpoints on disk: a safetensors file for each shard, and a manifest that makes them one.

The manifest is written last and replaces the old one in one step, so that a crash leaves the old checkpoint whole. It
holds a digest of every file and of itself: what is damaged is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multiring.collectives.sharded.agree import all_succeed
from multiring.collectives.sharded.state import covers, full_state, load_from, shard_state
from multiring.errors import CheckpointError
from multiring.kernels.dtypes import dtype_of, numpy_dtype

if TYPE_CHECKING:
    from multiring.collectives.sharded.optimizer import ShardedOptimizer

__all__ = ["load", "load_file", "save", "save_file"]

MANIFEST = "checkpoint.json"
DIGEST_BYTES = 32
ELEMENTS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64", "U8": "uint8"}


def save(optimizer: ShardedOptimizer, folder: str | os.PathLike[str]) -> None:
    """Write a checkpoint to a folder that all ranks see; all ranks must call.

    Parameters
    ----------
    optimizer : ShardedOptimizer
    folder : path
        Made if it is not there. A checkpoint in it is replaced, once the new one is whole.

    Raises
    ------
    CheckpointError
        If it cannot be written.
    """
    comm, place = optimizer.comm, Path(folder)
    token = np.frombuffer(secrets.token_bytes(8), np.uint8).copy()
    comm.broadcast(token, 0)
    name = f"{token.tobytes().hex()}-{optimizer.shard:05d}-of-{optimizer.n_shards:05d}.safetensors"
    writes = comm.rank < optimizer.n_shards  # of replicated shards, the first

    def write() -> NDArray[np.uint8]:
        with _explained(place):
            place.mkdir(parents=True, exist_ok=True)
            return _write(place / name, _packed(shard_state(optimizer))) if writes else np.zeros(DIGEST_BYTES, np.uint8)

    digests = comm.all_gather(all_succeed(comm, write, "checkpoint.save")).reshape(comm.size, DIGEST_BYTES)

    def publish() -> None:
        if comm.rank != 0:
            return
        with _explained(place):
            files = [
                {"name": name.replace("-00000-of-", f"-{shard:05d}-of-"), "blake2b": digests[shard].tobytes().hex()}
                for shard in range(optimizer.n_shards)
            ]
            body = {"format": 1, "n_shards": optimizer.n_shards, "steps": optimizer.steps, "files": files}
            old = _old_files(place)
            _write(place / MANIFEST, json.dumps({**body, "digest": _digest_of(body)}, indent=1).encode())
            for path in old - {place / str(f["name"]) for f in files}:
                path.unlink(missing_ok=True)

    all_succeed(comm, publish, "checkpoint.save")


def load(optimizer: ShardedOptimizer, folder: str | os.PathLike[str]) -> None:
    """Continue from a checkpoint that any number of ranks wrote; all ranks must call.

    Raises
    ------
    CheckpointError
        If there is none, or it is damaged; nothing is changed then.
    ArgumentError
        If it is of other parameters or another rule.
    """
    place = Path(folder)

    def read() -> Sequence[dict[str, NDArray[Any]]]:
        with _explained(place):
            manifest = _manifest(place)
            files: list[dict[str, str]] = manifest["files"]
            if manifest["n_shards"] == optimizer.n_shards:
                own = [_read(place / files[optimizer.shard]["name"], files[optimizer.shard]["blake2b"])]
                if covers(optimizer, own):
                    return own
            return [_read(place / each["name"], each["blake2b"]) for each in files]

    load_from(optimizer, read)


def save_file(optimizer: ShardedOptimizer, path: str | os.PathLike[str]) -> None:
    """Write the whole state to one safetensors file, from rank 0; all ranks must call.

    Weights are kept in the parameters' own type, bfloat16 too.
    """
    state, target = full_state(optimizer), Path(path)

    def write() -> None:
        if optimizer.comm.rank == 0:
            with _explained(target):
                digest = _content_digest(state)
                _write(target, _packed(state | {"digest": digest}))

    all_succeed(optimizer.comm, write, "checkpoint.save_file")


def load_file(optimizer: ShardedOptimizer, path: str | os.PathLike[str]) -> None:
    """Continue from a file of :func:`save_file`; all ranks must call.

    Raises
    ------
    CheckpointError
        If it is damaged.
    """
    source = Path(path)

    def read() -> Sequence[dict[str, NDArray[Any]]]:
        with _explained(source):
            state = _unpacked(source.read_bytes(), source)
            digest = state.pop("digest", None)
            if digest is None or digest.tobytes() != _content_digest(state).tobytes():
                raise CheckpointError(
                    f"{source}: got contents that do not match their digest, wanted an undamaged file"
                )
            return [state]

    load_from(optimizer, read)


# --- files ----------------------------------------------------------------------------------------------------------


def _safetensors() -> tuple[Any, Any]:
    try:
        import safetensors
        from safetensors import numpy as packing
    except ImportError:
        raise CheckpointError(
            "checkpoint: safetensors is not installed; install it: pip install 'multiring[checkpoint]'"
        ) from None
    return safetensors.deserialize, packing.save


def _packed(state: dict[str, NDArray[Any]]) -> bytes:
    arrays = {key: np.ascontiguousarray(array).reshape(array.shape) for key, array in state.items()}
    data: bytes = _safetensors()[1](arrays)
    return data


def _unpacked(data: bytes, path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file's bytes; safetensors' own way from bytes to numpy has no bfloat16."""
    deserialize = _safetensors()[0]
    state = {}
    try:
        for name, facts in deserialize(data):
            dtype = numpy_dtype(dtype_of(ELEMENTS[facts["dtype"]]))
            state[name] = np.frombuffer(facts["data"], dtype).reshape(facts["shape"])
    except Exception as error:  # safetensors has its own type; a broken header raises others
        raise CheckpointError(f"{path}: got a file that is no whole safetensors file ({error}), wanted one") from error
    return state


def _write(path: Path, data: bytes) -> NDArray[np.uint8]:
    """Write a file so that it is there whole or not at all; return its digest."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return np.frombuffer(_blake2b(data), np.uint8).copy()


def _read(path: Path, digest: str) -> dict[str, NDArray[Any]]:
    data = path.read_bytes()
    if _blake2b(data).hex() != digest:
        raise CheckpointError(
            f"{path}: got {len(data)} bytes that do not match the digest in {MANIFEST}, wanted an undamaged file; use "
            "an older checkpoint"
        )
    return _unpacked(data, path)


def _manifest(place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        digest = manifest.pop("digest")
        sound = digest == _digest_of(manifest)
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: got a file that cannot be read ({error!r}), wanted a manifest") from None
    if not sound:
        raise CheckpointError(f"{path}: got contents that do not match their digest, wanted an undamaged manifest")
    if manifest["format"] != 1:
        raise CheckpointError(f"{path}: got format {manifest['format']}, wanted 1, the format of this version")
    return dict(manifest)


def _old_files(place: Path) -> set[Path]:
    """Return the files of the checkpoint that is there now, as far as it can be read."""
    try:
        return {place / each["name"] for each in _manifest(place)["files"]}
    except (OSError, CheckpointError):
        return set()


def _digest_of(body: dict[str, Any]) -> str:
    return _blake2b(json.dumps(body, sort_keys=True).encode()).hex()


def _content_digest(state: dict[str, NDArray[Any]]) -> NDArray[np.uint8]:
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for key in sorted(state):
        array = np.ascontiguousarray(state[key])
        whole.update(f"{key} {array.dtype} {array.shape};".encode())
        whole.update(array.reshape(-1).view(np.uint8).tobytes())
    return np.frombuffer(whole.digest(), np.uint8).copy()


def _blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


@contextlib.contextmanager
def _explained(place: Path) -> Any:
    """Make the system's errors ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{place}: {error.strerror or error} ({error.filename}); wanted a checkpoint there"
        ) from error
