"""`cache_key_of`: whatever changes K or V changes the key, and what doesn't, such as where a model lies, leaves it."""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from engine_models import byte_tokenizer, tiny_llama
from gguf_files import TYPES, write_gguf
from safetensors.torch import load_file, save_file
from tiny_models import tiny

from octavo.core.cache_key import CacheKey, TenantNamespace
from octavo.engine import identity
from octavo.engine.build import build_engine
from octavo.engine.config import make_config
from octavo.engine.identity import KV_LAYOUT, PACKAGE, cache_key_of
from octavo.kernels.availability import Availability
from octavo.kernels.reference import paged_layer, write_kv
from octavo.models.load import load_model
from octavo.spec.memory import AttentionLayerSpec, MemorySpec
from octavo.text.chat_template import template_digest
from octavo.text.loading import load_tokenizer
from octavo.text.tokenizer import Tokenizer

SINGLE = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(tiny_llama(), tmp_path / "model")


def key(path, *, kernels="reference", kv_dtype="float32", block_size=16, revision=None, **options):
    model = load_model(path, **{"dtype": "float32", **options})
    spec = MemorySpec(model.memory_layers, kv_dtype, block_size)
    tokenizer = load_tokenizer(path) if (Path(path) / "tokenizer.json").is_file() else Tokenizer(byte_tokenizer())
    return cache_key_of(model, tokenizer, spec, kernels=kernels, revision=revision)


COMPARED = [field.name for field in dataclasses.fields(CacheKey) if field.compare]


def differing(one, other):
    return {name for name in COMPARED if getattr(one, name) != getattr(other, name)}


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_every_field_of_an_engine_is_filled(folder):
    made = key(folder, revision="main")
    of_a_request = {"adapter", "adapter_scale", "media", "namespace"}
    assert differing(made, CacheKey()) == set(COMPARED) - of_a_request
    assert made.namespace == TenantNamespace()


def test_the_same_contents_elsewhere_are_the_same_engine(folder, tmp_path):
    first = key(folder)
    assert (key(folder), key(folder).digest) == (first, first.digest)
    moved = shutil.copytree(folder, tmp_path / "another" / "name")
    (moved / SINGLE).touch()
    assert key(moved) == first


def test_other_weights_under_the_same_name_are_another_engine(folder):
    """K01-04, and a file that was written over with its size and time kept."""
    first, times = key(folder), (folder / SINGLE).stat()
    tensors = load_file(folder / SINGLE)
    tensors["model.layers.1.self_attn.v_proj.weight"][0, 0] += 1
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    os.utime(folder / SINGLE, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert (folder / SINGLE).stat().st_size == times.st_size
    assert differing(key(folder), first) == {"weights"}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"dtype": "bfloat16"}, {"compute_dtype"}),
        ({"kv_dtype": "float16"}, {"kv_dtype"}),
        ({"revision": "v2"}, {"revision"}),
        ({"kernels": "portable"}, {"numerics"}),
        ({"block_size": 8}, {"kv_layout"}),
        ({"block_size": 64}, set()),  # a tier keeps units of a page: a restart with larger blocks still hits
        ({"max_model_len": 64}, set()),
    ],
)
def test_one_setting_changes_its_own_field(folder, options, fields):
    assert differing(key(folder, **options), key(folder)) == fields


def test_paths_differ_among_each_other(folder):
    made = [key(folder, kernels=name) for name in ("reference", "portable", "avx2", "avx512", "avx512_bf16")]
    assert len({one.digest for one in made}) == 5
    assert [dict(one.numerics)["products"] for one in made] == ["torch"] + ["octavo"] * 4


def test_frequencies_that_depend_on_the_longest_sequence_are_in_the_key():
    dynamic, stretched = tiny("llama-dynamic").folder, tiny("llama-linear").folder
    assert differing(key(dynamic, max_model_len=600), key(dynamic, max_model_len=900)) == {"positions", "weights"}
    assert key(stretched, max_model_len=600) == key(stretched, max_model_len=900)
    plain = json.loads(key(stretched).positions)
    assert plain["factor"] == 4.0 and plain["scaling"] == "linear" and "source" not in plain
    assert json.loads(key(tiny("gpt2").folder).positions) == {"learned_from_row": 0}
    assert json.loads(key(tiny("opt").folder).positions) == {"learned_from_row": 2}


def test_the_position_encoding_is_a_field_of_its_own(folder):
    first = key(folder)
    change_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 20000.0})
    assert "positions" in differing(key(folder), first)


def test_the_tokenizer_is_its_content(folder):
    first = key(folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(described, indent=3))
    assert key(folder) == first  # the same in other bytes
    vocab = described["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (folder / "tokenizer.json").write_text(json.dumps(described))
    assert differing(key(folder), first) == {"tokenizer"}


def test_what_stands_around_a_text_is_of_the_tokenizer():
    made = [Tokenizer(byte_tokenizer()), Tokenizer(byte_tokenizer(), bos_token_id=0)]
    made += [Tokenizer(byte_tokenizer(), named_tokens={"bos_token": name}) for name in ("<s>", "\ud800")]
    assert len({one.digest() for one in made}) == 4
    assert Tokenizer(byte_tokenizer(), chat_template="x").digest() == made[0].digest()


def test_the_chat_template_is_the_one_in_use(folder):
    first, template = key(folder), load_tokenizer(folder).chat_template
    assert first.chat_template == template_digest(template) == hashlib.sha256(template.encode()).hexdigest()
    for file in ("chat_template.jinja", "tokenizer_config.json"):
        if file == "tokenizer_config.json":
            change_json(folder / file, chat_template=template + " ")
        else:
            (folder / file).unlink(missing_ok=True)
    assert differing(key(folder), first) == {"chat_template"}
    change_json(folder / "tokenizer_config.json", chat_template=None)
    assert key(folder).chat_template == "" != template_digest("")


def test_gguf_files_of_one_model_stored_differently_are_told_apart(tmp_path):
    model = tiny("llama")
    made = [key(write_gguf(model, tmp_path / f"{kind.name}.gguf", kind=kind)) for kind in (TYPES.F32, TYPES.F16)]
    assert len({one.weights for one in made}) == 2
    assert len({one.positions for one in made}) == 1


def test_the_code_that_computes_is_in_the_key(monkeypatch, tmp_path):
    """The files themselves, so that no edit of a kernel can forget a version number."""
    copy = tmp_path / "octavo"
    shutil.copytree(PACKAGE / "kernels", copy / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE / "models", copy / "models", ignore=shutil.ignore_patterns("__pycache__"))
    first = identity.code_digest()
    monkeypatch.setattr(identity, "PACKAGE", copy)
    assert identity.code_digest.__wrapped__() == first
    digests = {first}
    for file in ("kernels/reference.py", "models/decoder.py", "models/architectures/llama.py"):
        (copy / file).write_text((copy / file).read_text() + "\n")
        digests.add(identity.code_digest.__wrapped__())
    assert len(digests) == 4


def test_the_compiled_kernels_are_in_the_key_as_they_were_built(monkeypatch, tmp_path):
    if identity.native_kernels().module is None:
        pytest.skip("this installation has no compiled kernels")
    first, built = identity.code_digest(), Path(identity.native_kernels().module.__file__).read_bytes()
    for content in (built, built[:-1] + bytes([built[-1] ^ 1])):
        (tmp_path / "other.so").write_bytes(content)
        module = ModuleType("other")
        module.__file__ = str(tmp_path / "other.so")
        monkeypatch.setattr(identity, "native_kernels", lambda module=module: Availability(module))
        assert (identity.code_digest.__wrapped__() == first) == (content == built)


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [("float32", "e4918712af42c90f"), ("bfloat16", "2696c69057da6609")],
)
def test_a_page_is_laid_out_as_this_version_says(dtype, digest):
    """Whoever moves an element inside a page raises KV_LAYOUT and puts the new digests here: old pages then miss."""
    spec = MemorySpec((AttentionLayerSpec(2, 16), AttentionLayerSpec(1, 16)), dtype, 32)
    arena = torch.zeros(2 * spec.block_bytes, dtype=torch.uint8)
    tokens, count = torch.arange(40), 0
    for i, layer in enumerate(spec.layers):
        shape = (40, layer.num_kv_heads, layer.head_dim)
        size = 40 * layer.num_kv_heads * layer.head_dim
        numbers = torch.arange(count, count + 2 * size) * 37 % 251  # exact in bfloat16, and no power of two is a period
        k, v = numbers.float().view(2, *shape)
        write_kv(paged_layer(arena, spec, i), tokens // 32, tokens, k, v)
        count += 2 * size
    assert (KV_LAYOUT, hashlib.sha256(arena.numpy().tobytes()).hexdigest()[:16]) == (1, digest)


def test_the_engine_carries_its_key():
    settings = {"dtype": "float32", "threads": 1, "num_blocks": 8, "kernels": "reference", "max_num_batched_tokens": 64}
    built = build_engine(make_config(str(tiny_llama()), settings))
    built.engine.close()
    assert built.cache_key == key(tiny_llama())
