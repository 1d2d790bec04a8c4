"""GGUF files: the same logits as the safetensors of the same model, and clean errors for damaged, hostile and split ones."""

import struct

import gguf
import numpy as np
import pytest
import torch
from executing import Driver, assert_logits_close
from gguf_files import TYPES, write_gguf
from tiny_models import VOCAB, tiny

from octavo.core.errors import ModelLoadError, UnsupportedModelError
from octavo.models.checkpoint import load_config
from octavo.models.gguf_file import TENSOR_TYPES, open_gguf
from octavo.models.gguf_weights import GGUFWeights
from octavo.models.load import load_model

IDS = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
ARCHITECTURES = ["llama", "llama-biases", "qwen2", "qwen3", "gemma", "phi3", "gpt2"]


def logits(path, **options):
    return Driver(load_model(path, dtype="float32", **options)).step({0: IDS})[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_equal_those_of_the_safetensors(name, tmp_path):
    model = tiny(name)
    assert_logits_close(logits(write_gguf(model, tmp_path / "model.gguf")), model.logits(IDS))


def test_tied_model_without_output_tensor_uses_its_embedding(tmp_path):
    model = tiny("llama-tied")
    path = write_gguf(model, tmp_path / "model.gguf")
    assert "output.weight" not in open_gguf(path).tensors
    assert_logits_close(logits(path), model.logits(IDS))


def test_float16_is_near_and_is_told_once(tmp_path):
    model = tiny("llama-tied")
    path = write_gguf(model, tmp_path / "model.gguf", kind=TYPES.F16)
    assert_logits_close(logits(path), model.logits(IDS), tolerance=5e-2)
    assert [notice for notice in load_model(path).notices if "float16" in notice] == list(load_model(path).notices)


@pytest.mark.parametrize("kind", ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_matrices_are_what_the_package_dequantises(kind, tmp_path):
    weight = np.random.default_rng(0).standard_normal((70, 64)).astype(np.float32)
    stored = gguf.quants.quantize(weight, TYPES[kind])
    assert_reads_back(tmp_path, kind, stored, (70, 64))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_what_the_package_dequantises(kind, tmp_path):
    nbytes = next(entry.nbytes for entry in TENSOR_TYPES.values() if entry.name == kind)
    stored = np.random.default_rng(0).integers(0, 60, (33, 2 * nbytes), dtype=np.uint8)  # 60: no half of these bytes is NaN
    assert_reads_back(tmp_path, kind, stored, (33, 512))


def assert_reads_back(tmp_path, kind, stored, shape):
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("some.weight", stored, raw_dtype=TYPES[kind])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    weights = GGUFWeights(open_gguf(tmp_path / "one.gguf"), {})
    got = weights.get("some.weight", shape, torch.float32)
    assert torch.equal(got, torch.from_numpy(gguf.quants.dequantize(stored, TYPES[kind])))
    assert got.abs().max() > 0
    with pytest.raises(ModelLoadError, match=r"some\.weight has the shape"):
        weights.get("some.weight", (shape[0] + 1, shape[1]), torch.float32)


def test_sizes_of_tensor_types_are_the_packages():
    for number, kind in TENSOR_TYPES.items():
        assert TYPES(number).name == kind.name
        assert gguf.GGML_QUANT_SIZES[TYPES(number)] == (kind.block, kind.nbytes)


def test_frequency_divisors_give_llama3s_scaling(tmp_path):
    model = tiny("llama-llama3")
    factor, low, high, trained = 8.0, 1.0, 4.0, 64
    turns = trained / (2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16))
    keep = np.clip((turns - low) / (high - low), 0, 1)
    divisors = (1 / ((1 - keep) / factor + keep)).astype(np.float32)
    path = write_gguf(model, tmp_path / "model.gguf", extra={"rope_freqs.weight": divisors})
    ids = IDS * 7
    assert_logits_close(Driver(load_model(path, dtype="float32")).step({0: ids})[0], model.logits(ids))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama-linear", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
        ("llama-yarn", {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}),
    ],
)
def test_rope_scaling_keys_are_read(name, keys, tmp_path):
    model = tiny(name)
    assert_logits_close(logits(write_gguf(model, tmp_path / "model.gguf", numbers=keys)), model.logits(IDS))


def test_a_mixture_of_experts_is_refused(tmp_path):
    path = write_gguf(tiny("llama"), tmp_path / "model.gguf", numbers={"expert_count": 8})
    with pytest.raises(UnsupportedModelError, match=r"model\.gguf: mixtures of experts aren't read from GGUF"):
        load_model(path, dtype="float32")


def test_longrope_factors_come_from_their_tensors(tmp_path):
    model = tiny("phi3-longrope")
    rope = model.model.config.rope_parameters
    extra = {f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32) for length in ("short", "long")}
    keys = {"rope.scaling.original_context_length": 64, "rope.dimension_count": 12}
    path = write_gguf(model, tmp_path / "model.gguf", extra=extra, numbers=keys)
    ids = IDS * 4
    assert_logits_close(Driver(load_model(path, dtype="float32")).step({0: ids})[0], model.logits(ids))
    short = Driver(load_model(path, dtype="float32", max_model_len=64)).step({0: IDS})[0]
    assert_logits_close(short, model.logits(IDS))


def test_split_file_loads_from_any_part_and_from_its_folder(tmp_path):
    model = tiny("llama-tied")
    first = write_gguf(model, tmp_path / "model.gguf", parts_of=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3 and first == parts[0]
    for path in (first, parts[1], tmp_path):
        assert_logits_close(logits(path), model.logits(IDS))
    parts[2].unlink()
    for path in (first, parts[1], tmp_path):
        with pytest.raises(ModelLoadError, match=r"missing model-00003-of-00003\.gguf"):
            load_model(path)


def test_renamed_part_is_refused(tmp_path):
    write_gguf(tiny("llama-tied"), tmp_path / "model.gguf", parts_of=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    content = [part.read_bytes() for part in parts]
    parts[1].write_bytes(content[2])
    parts[2].write_bytes(content[1])
    with pytest.raises(ModelLoadError, match="says that it is part 3 of 3; its name says 2 of 3"):
        load_model(parts[0])
    lone = tmp_path / "lone.gguf"
    lone.write_bytes(content[0])
    with pytest.raises(ModelLoadError, match="is part 1 of 3, but isn't named"):
        load_model(lone)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return write_gguf(tiny("llama-tied"), tmp_path_factory.mktemp("sound") / "sound.gguf").read_bytes()


def test_tensor_offset_outside_the_file_is_refused(sound, tmp_path):
    name = b"blk.1.ffn_down.weight"
    at = sound.index(name) + len(name) + 4 + 2 * 8 + 4  # dimensions, two sizes, type
    path = tmp_path / "bad.gguf"
    for offset in (len(sound), 2**40, 2**63, 2**64 - 32, len(sound) - 1):
        path.write_bytes(sound[:at] + struct.pack("<Q", offset) + sound[at + 8 :])
        with pytest.raises(ModelLoadError, match=r"bad\.gguf: tensor blk\.1\.ffn_down\.weight lies at bytes"):
            load_model(path)


def test_truncated_file_is_refused_wherever_it_is_cut(sound, tmp_path):
    path = tmp_path / "cut.gguf"
    for tenth in range(10):
        path.write_bytes(sound[: len(sound) * tenth // 10])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            load_model(path)


def test_damage_anywhere_in_the_header_never_escapes_as_another_error(sound, tmp_path):
    path = tmp_path / "damaged.gguf"
    end = sound.index(b"output_norm.weight")
    for at in range(0, end, 7):
        for byte in (0x00, 0xFF):
            path.write_bytes(sound[:at] + bytes([byte]) + sound[at + 1 : end + 4000])
            with pytest.raises(ModelLoadError):
                open_gguf(path)  # cut, so even a harmless change ends in an error


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"attention.head_count_kv": 3}, "4 heads can't be shared out over 3 KV heads"),
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 2**31}, "block_count is"),
        ({"embedding_length": 2**31}, "hidden_size=2147483648 must be"),
        ({"context_length": 0}, "context_length is 0"),
        ({"rope.scaling.type": "other"}, "rope scaling 'other' isn't known"),
        ({"feed_forward_length": 89}, r"shape \[88, 64\]; the config makes it \[89, 64\]"),
    ],
)
def test_hostile_metadata_is_refused_by_field(numbers, message, tmp_path):
    with pytest.raises(ModelLoadError, match=message):
        load_model(rewritten(tmp_path, numbers))


def rewritten(tmp_path, numbers):
    """A file whose metadata says `numbers` where the model says otherwise."""
    path = write_gguf(tiny("llama-tied"), tmp_path / "model.gguf")
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "hostile.gguf", "llama")
    kept = {key: field for key, field in reader.fields.items() if key.startswith("llama.")}
    for key, field in kept.items():
        if key.removeprefix("llama.") not in numbers:
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in numbers.items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        writer.add_key_value("llama." + key, value, kind)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    return tmp_path / "hostile.gguf"


def test_unknown_architectures_and_tensor_types_are_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(UnsupportedModelError, match=r"'bert'.*known are gemma, gpt2, llama, phi3, qwen2, qwen3"):
        load_model(tmp_path / "bert.gguf")
    writer = gguf.GGUFWriter(tmp_path / "iq.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((2, 136), np.uint8), raw_dtype=TYPES.IQ4_XS)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    with pytest.raises(UnsupportedModelError, match=r"token_embd\.weight has the type number 23"):
        load_model(tmp_path / "iq.gguf")


def test_folder_with_two_models_asks_which(tmp_path):
    for name in ("a", "b"):
        write_gguf(tiny("llama-tied"), tmp_path / f"{name}.gguf")
    with pytest.raises(ModelLoadError, match=r"2 GGUF models \(a\.gguf, b\.gguf\)"):
        load_config(tmp_path)
