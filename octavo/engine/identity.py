"""`cache_key_of`: which engine this is, as far as any bit of K or V can tell; from what was really loaded, not from its names."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from pathlib import Path

import torch

from octavo.core.cache_key import CacheKey
from octavo.kernels.availability import native_kernels
from octavo.models.load import LoadedModel
from octavo.models.rope import inverse_frequencies
from octavo.spec.memory import MemorySpec
from octavo.text.chat_template import template_digest
from octavo.text.tokenizer import Tokenizer

# How elements lie inside a page (octavo/kernels/reference.py says it); raised by whoever changes that.
KV_LAYOUT = 1

PACKAGE = Path(__file__).parents[1]


def cache_key_of(model: LoadedModel, tokenizer: Tokenizer, spec: MemorySpec, *, kernels: str, revision: str | None = None) -> CacheKey:
    """The base key of an engine: a request's key differs from it in namespace, chat template, adapter and media at most.

    kernels: the executor's name, "reference" or an instruction path.  revision: as the model was asked for.

    Reads every weight once more, on all CPUs: 1.4 GB/s for each that has SHA instructions.  That is paid at every start on purpose:
    neither a file's name nor its time says what is in it, and who trusts them reads another model's memory on the day that they lie.
    """
    return CacheKey(
        weights=model.digest(),
        revision=revision or "",
        compute_dtype=model.dtype,
        kv_dtype=spec.kv_dtype,
        kv_layout=f"{KV_LAYOUT}, pages of {spec.page_tokens}",
        positions=_positions(model),
        tokenizer=tokenizer.digest(),
        chat_template=template_digest(tokenizer.chat_template),
        numerics=_numerics(kernels),
    )


def _positions(model: LoadedModel) -> str:
    """Canonical JSON of the position encoding, with the frequencies that came of it: some depend on the longest sequence."""
    rope = model.config.rope
    if rope is None:
        return _canonical({"learned_from_row": model.config.position_offset})
    described = {name: value for name, value in dataclasses.asdict(rope).items() if name != "source"}
    frequencies = inverse_frequencies(rope, model.max_model_len).numpy().tobytes()
    return _canonical({**described, "frequencies": hashlib.sha256(frequencies).hexdigest()})


def _canonical(value: dict[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _numerics(kernels: str) -> tuple[tuple[str, str], ...]:
    """Torch makes the rotary tables, and gguf dequantises, whatever the kernels are; the reference leaves the products to torch."""
    return (
        ("octavo", code_digest()),
        ("path", kernels),
        ("products", "torch" if kernels == "reference" else "octavo"),
        ("torch", str(torch.__version__)),
        ("torch path", torch.backends.cpu.get_cpu_capability()),
        ("gguf", importlib.metadata.version("gguf")),
    )


@functools.cache
def code_digest() -> str:
    """SHA-256, in hex, of the code that decides K and V: the compiled kernels as built (their sources, compiler and flags are all in
    there), and the Python sources that make programs and carry them out."""
    folders = (PACKAGE / "kernels", PACKAGE / "models")
    files = [(path.relative_to(PACKAGE).as_posix(), path) for folder in folders for path in folder.rglob("*.py")]
    module = native_kernels().module
    if module is not None and module.__file__ is not None:
        files.append(("compiled", Path(module.__file__)))
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{len(name)}:{name}".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
