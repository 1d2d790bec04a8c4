"""Folders of safetensors: sharded, tied, damaged and hostile ones."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from executing import Driver, assert_logits_close
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB, tiny

from octavo.core.errors import CapacityError, ConfigError, ModelLoadError, UnsupportedModelError
from octavo.models.checkpoint import load_config
from octavo.models.load import load_model
from octavo.models.rope import rope_tables
from octavo.spec.host import HostMemory

IDS = torch.randint(3, VOCAB, (24,), generator=torch.Generator().manual_seed(2)).tolist()
SINGLE = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A copy of the tied tiny Llama, to be changed."""
    return shutil.copytree(tiny("llama-tied").folder, tmp_path / "model")


def logits(path, **options):
    return Driver(load_model(path, dtype="float32", **options)).step({0: IDS})[0]


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder, change):
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def shard(folder, count=3):
    tensors = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    weight_map = {name: names[i % count] for i, name in enumerate(sorted(tensors))}
    for file in names:
        save_file({name: tensors[name] for name, where in weight_map.items() if where == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return names


def test_shards_are_the_same_model_with_the_same_digest(folder):
    whole = load_model(folder, dtype="float32").digest()
    shard(folder)
    assert load_model(folder, dtype="float32").digest() == whole
    assert_logits_close(logits(folder), tiny("llama-tied").logits(IDS))


def test_digest_tells_weights_and_config_apart(folder):
    whole = load_model(folder).digest()
    change_config(folder, rms_norm_eps=1e-3)
    other_config = load_model(folder).digest()
    change_tensors(folder, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert len({whole, other_config, load_model(folder).digest()}) == 3


def test_missing_shard_is_named(folder):
    names = shard(folder)
    (folder / names[1]).unlink()
    with pytest.raises(ModelLoadError, match=f"missing {names[1]}"):
        load_model(folder)


def test_index_can_name_no_file_outside_the_folder(folder):
    shard(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(ModelLoadError, match="must be the name of a safetensors file"):
        load_model(folder)


def test_index_that_promises_too_much_is_refused(folder):
    names = shard(folder)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.extra.weight"] = names[0]
    path.write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=rf"{names[0]}: tensor model\.extra\.weight is missing"):
        load_model(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, 3000, -1])
def test_truncated_file_is_refused_by_name(folder, keep):
    content = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(content[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors \(\d+ bytes\) is truncated or damaged"):
        load_model(folder)


def test_missing_tensor_and_wrong_shape_are_named(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has the shape \[63\]; the config makes it \[64\]"):
        load_model(folder)
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelLoadError, match=r"tensor model\.norm\.weight is missing"):
        load_model(folder)


def test_pickled_weights_are_refused_with_the_reason(folder):
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="unpickling runs whatever the file says"):
        load_model(folder)
    with pytest.raises(ModelLoadError, match="unpickling runs whatever the file says"):
        load_model(folder / "pytorch_model.bin")


def test_integer_weights_are_refused(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight is stored as I8"):
        load_model(folder)


def test_tied_model_that_also_stores_its_head(folder):
    expected = tiny("llama-tied").logits(IDS)
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    model = load_model(folder, dtype="float32")
    assert model.notices == () and model.program.head[-1].matrix is model.program.body[0].table
    assert_logits_close(logits(folder), expected)
    change_tensors(folder, lambda tensors: tensors["lm_head.weight"].mul_(2))
    model = load_model(folder, dtype="float32")
    assert_logits_close(logits(folder), 2 * expected)
    assert ["differs from the token embedding" in notice for notice in model.notices] == [True]


def test_untied_model_without_a_head_uses_its_embedding_and_says_so(folder):
    change_config(folder, tie_word_embeddings=False)
    assert_logits_close(logits(folder), tiny("llama-tied").logits(IDS))
    assert "serves as output" in load_model(folder).notices[0]


@pytest.mark.parametrize(("name", "prefix"), [("gpt2", "transformer."), ("opt", "model."), ("llama-tied", "model.")])
def test_names_without_the_first_part_are_found(name, prefix, tmp_path):
    folder = shutil.copytree(tiny(name).folder, tmp_path / "model")
    tensors = {key.removeprefix(prefix): value for key, value in load_file(folder / SINGLE).items()}
    save_file(tensors, folder / SINGLE)
    assert_logits_close(logits(folder), tiny(name).logits(IDS))


def test_float16_checkpoint_is_converted_with_one_notice(folder):
    change_tensors(folder, lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}))
    model = load_model(folder, dtype="float32")
    assert ["float16 weights are converted to float32" in notice for notice in model.notices] == [True]
    assert_logits_close(logits(folder), tiny("llama-tied").logits(IDS), tolerance=5e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": -64}, "hidden_size is -64; it must be at least 1"),
        ({"hidden_size": 10**13}, "hidden_size is 10000000000000"),
        ({"hidden_size": 1 << 30}, "hidden_size=1073741824 must be"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 62, "head_dim": None}, "can't be shared out over num_attention_heads=4"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, "4 heads can't be shared out over 3 KV heads"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"vocab_size": 1 << 40}, "vocab_size=1099511627776 must be"),
        ({"head_dim": 15, "rope_parameters": None}, "15 elements of a head rotate; it must be an even number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a finite number"),
        ({"rms_norm_eps": 10**400}, "it must be a finite number"),
        ({"rms_norm_eps": -1.0}, "norm_eps=-1.0 must be"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id is .* it must be a token id"),
        ({"eos_token_id": -5}, "end-of-sequence id -5"),
        ({"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu' isn't known"),
        ({"rope_parameters": {"rope_type": "mrope", "factor": 2.0}}, "rope scaling 'mrope' isn't known"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "linear", "factor": -1.0}}, "factor=-1.0 must be above 0"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}}, "short_factors has 1 entries; 8"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ from layer to layer"),
        ({"rope_parameters": 7}, "rope_parameters is 7; it must be a mapping"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"weights are quantised \(gptq\)"),
        ({"architectures": ["BertModel"]}, "BertModel.* isn't a decoder that Octavo knows; known are GPT2LMHeadModel, Gemma"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "known are"),
        ({"architectures": None, "model_type": "bert"}, "model_type='bert' isn't"),
    ],
)
def test_hostile_config_is_refused_by_file_and_field(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ModelLoadError, match=rf"(?s)config\.json.*{message}"):
        load_model(folder)
    with pytest.raises(ModelLoadError, match=message):
        load_config(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"a": 1}', "\x00"])
def test_config_that_is_no_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        load_model(folder)


def test_settings_that_cannot_be_met_are_refused_with_numbers(folder):
    with pytest.raises(ConfigError, match="max_model_len=513 must be at least 1 and at most 512"):
        load_model(folder, max_model_len=513)
    with pytest.raises(ConfigError, match=r"dtype='float16' is not one of.*storage only"):
        load_model(folder, dtype="float16")
    with pytest.raises(ConfigError, match="load_format='pt' is not one of"):
        load_model(folder, load_format="pt")
    with pytest.raises(ConfigError, match="give the path of the GGUF file"):
        load_model(folder, load_format="gguf")


def test_weights_beyond_this_machine_are_refused_before_memory_is_taken(folder):
    change_config(folder, intermediate_size=1 << 20, hidden_size=1 << 18, num_hidden_layers=4000)
    with pytest.raises(CapacityError, match="bytes of memory are free"):
        load_model(folder, load_format="dummy")


def test_tables_beyond_reason_are_refused_with_the_setting(folder):
    change_config(folder, max_position_embeddings=1 << 28)
    with pytest.raises(CapacityError, match="set a smaller max_model_len"):
        load_model(folder)
    assert load_model(folder, max_model_len=100).max_model_len == 100


def test_room_for_the_rotary_tables_is_asked_for(folder, monkeypatch):
    change_config(folder, max_position_embeddings=1 << 20)
    tables = 2 * 4 * (1 << 20) * 8  # 16 elements of a head turn
    monkeypatch.setattr("octavo.models.load.read_host_memory", lambda: HostMemory(tables, tables, "machine"))
    with pytest.raises(CapacityError, match=f"{tables} for the rotary tables of max_model_len={1 << 20}"):
        load_model(folder)
    assert load_model(folder, max_model_len=1 << 10).max_model_len == 1 << 10


def test_tables_cover_max_model_len(folder):
    config = load_config(folder)
    tables = rope_tables(config.rope, 77)
    assert tables.cos.shape == (77, 8) and tables.cos.dtype == torch.float32


def test_end_ids_come_from_both_files(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2, 9]}))
    assert load_config(folder).eos_token_ids == (2, 7, 9)


def test_dummy_weights_need_only_a_config_and_depend_on_the_seed(folder):
    (folder / SINGLE).unlink()
    first, again, other = (logits(folder, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.isfinite(first).all() and first.std() > 0
    digests = {load_model(folder, load_format="dummy", seed=seed).digest() for seed in (1, 2)}
    assert len(digests) == 2


def test_memory_layers_are_those_of_the_config(folder):
    model = load_model(folder)
    assert [(layer.num_kv_heads, layer.head_dim, layer.window) for layer in model.memory_layers] == [(2, 16, None)] * 2
    assert model.tokenizer_source == folder


def test_config_and_registry_are_read_without_torch(folder):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from octavo.models.checkpoint import load_config\n"
        f"print(load_config({str(folder)!r}).attention_layers()[0].head_dim)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "16\n", done.stderr
