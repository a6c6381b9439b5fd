"""The four top-level folders are the sub-packages, and a built wheel holds all of them as real files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ["topology", "collectives", "kernels", "bench"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_top_level_folder_is_the_subpackage(name: str) -> None:
    file = import_module(f"multiring.{name}").__file__
    assert file is not None
    assert Path(file).resolve() == ROOT / name / "__init__.py"


@pytest.mark.parametrize("name", FOLDERS)
def test_links_are_relative(name: str) -> None:
    assert (ROOT / "src" / "multiring" / name).readlink() == Path("..", "..", name)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def sources() -> set[str]:
    """Return the modules of the checkout as a wheel names them."""
    own = {f"multiring/{path.name}" for path in (ROOT / "src" / "multiring").glob("*.py")}
    return own | {f"multiring/{path.relative_to(ROOT)}" for name in FOLDERS for path in (ROOT / name).rglob("*.py")}


def build(command: str, project: Path, target: Path) -> Path:
    """Call the build backend's hook as pip does, in a process of its own, and return what it wrote."""
    target.mkdir()
    code = f"from setuptools import build_meta; print(build_meta.{command}({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


def test_sdist_and_its_wheel_hold_every_module_as_a_real_file(tmp_path: Path) -> None:
    checkout = tmp_path / "check out"
    names = ["pyproject.toml", "README.md", "LICENSE", "src", *FOLDERS]
    checkout.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, checkout / name)

    sdist = build("build_sdist", checkout, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        assert [member.name for member in archive if not (member.isreg() or member.isdir())] == []
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()

    for origin, project in (("checkout", checkout), ("sdist", unpacked)):
        wheel = build("build_wheel", project, tmp_path / f"wheel from {origin}")
        with zipfile.ZipFile(wheel) as archive:
            held = set(archive.namelist())
        assert {name for name in held if name.endswith(".py")} == sources(), origin
        assert "multiring/py.typed" in held
