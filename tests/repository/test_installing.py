"""Installing as docs/install.md says, where the package is not yet: from a wheel and from source.

All else that is needed is in this environment, and no index is asked; JAX 99 would be available.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.repository.notebook_runs import ROOT

WHEEL = "lantern_jax-0.1.0-py3-none-any.whl"
LOOK = """
import importlib.util, json
from importlib.metadata import version
found = importlib.util.find_spec("lantern_jax")
print(json.dumps([found and found.origin, version("jax")]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel, an archive of the source, and a wheel of a JAX that must not be installed."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    ignored = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".pytest_cache", "golden")
    shutil.copytree(ROOT, source, ignore=ignored)
    for kind in ("wheel", "sdist"):
        build = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    for name in ("jax", "jaxlib"):
        info = f"{name}-99.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-99.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return folder


@dataclass
class Environment:
    """A Python that has all packages of this one but ours, and a folder to work in."""

    python: Path
    folder: Path
    variables: dict[str, str]

    def run(self, *words: object, folder: Path | None = None) -> subprocess.CompletedProcess:
        where = folder or self.folder
        return subprocess.run(
            [self.python, *words], cwd=where, env=self.variables, capture_output=True, text=True
        )

    def found(self) -> tuple[str | None, str]:
        """Returns the file of the package, None where there is none, and the version of JAX."""
        return tuple(json.loads(self.run("-c", LOOK).stdout))


@pytest.fixture
def environment(built, tmp_path) -> Environment:
    home, folder = tmp_path / "environment", tmp_path / "folder"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    python = home / "bin" / "python"
    own = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = Path(subprocess.check_output([python, "-c", own], text=True).strip())
    for old in own.glob("setuptools*"):  # Older Pythons come with one, which reads no such pyproject.toml.
        shutil.rmtree(old)
    # Packages of a folder named in such a file are found, but its links to editable packages are not followed.
    (own / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(built), "PIP_NO_BUILD_ISOLATION": "0",
                "PIP_DISABLE_PIP_VERSION_CHECK": "1", "JAX_PLATFORMS": "cpu"}  # fmt: skip
    made = Environment(python, folder, {**kept, **settings})
    assert made.found() == (None, version("jax"))
    return made


def commands() -> list[str]:
    """Returns the commands of the page that install, as they stand there."""
    page = (ROOT / "docs" / "install.md").read_text("utf-8")
    return re.findall(r"`pip install ([^`]+)`", page.partition("| extra |")[0])


@pytest.mark.slow
def test_the_pages_commands_install_and_leave_jax(environment, built):
    """The clone's and the wheel's, each over the one before; git has nothing to clone here."""
    shutil.copy(built / WHEEL, environment.folder)
    named = [command for command in commands() if "git+" not in command]
    assert len(named) == 4 and len(commands()) == 5
    for command in named:
        clone, words = WHEEL not in command, command.replace('"', "").split()
        folder = built / "source" if clone else environment.folder
        done = environment.run(
            "-m", "pip", "install", "--force-reinstall", "--no-deps", *words, folder=folder
        )
        assert done.returncode == 0, done.stderr
        where, jax = environment.found()
        assert where.startswith(str(environment.python.parents[1])) and jax == version("jax")
    # With its dependencies, which are all there.
    again = environment.run("-m", "pip", "install", "--dry-run", f"./{WHEEL}[serve,hub]")
    assert again.returncode == 0 and "Would install jax" not in again.stdout, again.stderr
    drawn = environment.run("-m", "lantern_jax", "info")
    assert drawn.returncode == 0 and "demo" in drawn.stdout
