"""Every architecture against transformers: the same logits, in one piece, in chunks beside decodes, and in blocks of any size."""

import pytest
import torch
from executing import Driver, assert_logits_close
from tiny_models import CONFIGS, VOCAB, tiny

from octavo.models.load import load_model


def prompts(count, length, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (length,), generator=generator).tolist() for _ in range(count)]


@pytest.mark.parametrize("name", CONFIGS)
def test_teacher_forced_logits_equal_transformers(name):
    model = tiny(name)
    driver = Driver(load_model(model.folder, dtype="float32", max_model_len=64 if "dynamic" not in name else None))
    texts = prompts(3, 64)
    expected = [model.logits(ids) for ids in texts]
    whole = driver.step(dict(enumerate(texts)))
    for index, logits in whole.items():
        assert_logits_close(logits, expected[index])


@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_beside_decodes_equal_one_piece(name):
    model = tiny(name)
    driver = Driver(load_model(model.folder, dtype="float32", max_model_len=64), block_size=8)
    first, second = prompts(2, 64, seed=7)
    got = [[], []]
    steps = [(first[:20], []), (first[20:21], second[:13]), (first[21:22], second[13:40]), (first[22:50], second[40:41])]
    steps += [(first[50 + i : 51 + i], second[41 + i : 42 + i]) for i in range(14)]
    for chunk in steps:
        out = driver.step({seq: ids for seq, ids in enumerate(chunk) if ids})
        for seq, logits in out.items():
            got[seq].append(logits)
    assert_logits_close(torch.cat(got[0]), model.logits(first))
    assert_logits_close(torch.cat(got[1]), model.logits(second)[:55])


def test_longrope_beyond_the_trained_length_takes_the_long_factors():
    model = tiny("phi3-longrope")
    driver = Driver(load_model(model.folder, dtype="float32"))
    (ids,) = prompts(1, 200)
    assert_logits_close(driver.step({0: ids})[0], model.logits(ids))


@pytest.mark.parametrize("length", [10, 60, 70, 300])
def test_llama3_scaling_equals_transformers_at_every_length(length):
    model = tiny("llama-llama3")
    driver = Driver(load_model(model.folder, dtype="float32"))
    (ids,) = prompts(1, length)
    assert_logits_close(driver.step({0: ids})[0], model.logits(ids))


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_bfloat16_stays_near_float32(name):
    model = tiny(name)
    driver = Driver(load_model(model.folder, dtype="bfloat16"))
    (ids,) = prompts(1, 48)
    expected = model.logits(ids)
    difference = (driver.step({0: ids})[0] - expected).abs().mean() / expected.abs().mean()
    assert difference < 0.05
