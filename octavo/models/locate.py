"""From what a user calls a model to the files on this machine: a folder, a GGUF file, a short name, or a hub id."""

import re
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import ModelLoadError
from octavo.models.fetch import MODELS, fetch_model

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # a part that begins with a dot is of a path
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
WEIGHTS_OF_OTHERS = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True)
class Located:
    """path: a folder with config.json, or a GGUF file (the folder of one).  revision: the hub's commit, or empty."""

    path: Path
    is_gguf: bool
    revision: str = ""


def locate(model: str | Path, *, revision: str | None = None) -> Located:
    """Raises ModelLoadError when nothing on this machine or on the hub answers to `model`."""
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    name = str(model)
    if name in MODELS:
        return Located(fetch_model(name), is_gguf=True)
    if path.suffix in (".gguf", ".safetensors", *WEIGHTS_OF_OTHERS) or path.is_absolute() or not HUB_ID.fullmatch(name):
        raise ModelLoadError(
            f"{name}: there is no such folder or file; a model is a folder with config.json and safetensors, a GGUF file, "
            f"a hub id (owner/name), or one of: {', '.join(MODELS)}"
        )
    folder = _from_hub(name, revision)
    # The hub's library names a snapshot's folder after its commit.
    return Located(folder, is_gguf=False, revision=folder.name)


def _local(path: Path) -> Located:
    if path.is_dir():
        has_config = (path / "config.json").is_file()
        return Located(path, is_gguf=not has_config and any(path.glob("*.gguf")))
    if path.suffix == ".safetensors":
        return Located(path.parent, is_gguf=False)
    if path.suffix in WEIGHTS_OF_OTHERS:
        raise ModelLoadError(f"{path}: is pickled, and unpickling runs whatever the file says; convert it to safetensors")
    return Located(path, is_gguf=True)


def _from_hub(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # takes half a second to import, and most runs need no hub
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=HUB_FILES))
    except HFValidationError as error:
        raise ModelLoadError(
            f"{name}: there is no such folder or file here, and it can't be a hub id (owner/name): {error}"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelLoadError(f"{name}: the hub has no revision {revision!r} of it") from error
    except RepositoryNotFoundError as error:
        raise ModelLoadError(f"{name}: there is no such folder here and no such model on the hub (or it needs a token)") from error
    except LocalEntryNotFoundError as error:
        raise ModelLoadError(
            f"{name}: there is no such folder or file here; as a hub id it isn't in the hub's cache on this machine, "
            "and the hub can't be reached; check the path, or the network"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelLoadError(f"{name}: the download from the hub failed: {error}") from error
