"""Frequencies and tables against transformers' own functions at the same length."""

import pytest
import torch
import transformers
from tiny_models import LLAMA3, LONGROPE
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.models.fields import Fields
from octavo.models.hf_config import rope_config
from octavo.models.rope import inverse_frequencies, rope_tables

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5},
    "yarn-factor": {**YARN, "attention_factor": 1.3},
    "longrope": {**LONGROPE, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.75},
}


@pytest.mark.parametrize("length", [48, 64, 65, 512, 2000])
@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_equal_transformers_at_every_length(name, length):
    parameters = {**SCALINGS[name], "rope_theta": 10000.0}
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=512, rope_parameters=dict(parameters)
    )
    inverse, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=length)
    ours = rope_config(Fields({"rope_parameters": parameters}, "config.json"), 16, 512)
    torch.testing.assert_close(inverse_frequencies(ours, length), inverse, atol=0, rtol=2e-6)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-6)


def test_older_form_of_the_config_reads_the_same():
    old = Fields({"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, "config.json")
    new = Fields({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}, "config.json")
    tables = [rope_tables(rope_config(fields, 16, 512), 40) for fields in (old, new)]
    assert torch.equal(tables[0].cos, tables[1].cos) and torch.equal(tables[0].sin, tables[1].sin)


def test_attention_factor_multiplies_both_tables():
    ours = rope_config(Fields({"rope_parameters": {**YARN, "attention_factor": 1.5}}, "config.json"), 16, 512)
    tables = rope_tables(ours, 100)
    torch.testing.assert_close(tables.cos.square() + tables.sin.square(), torch.full((100, 8), 2.25))
