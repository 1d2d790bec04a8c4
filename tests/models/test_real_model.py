"""SmolLM2-135M-Instruct out of its GGUF file, against transformers' own reading of the same file."""

import pytest
import torch
import transformers
from executing import Driver, assert_logits_close

from octavo.models.fetch import fetch_model
from octavo.models.load import load_model

NAME = "smollm2-135m"


@pytest.fixture(scope="module")
def theirs():
    # In float64: what the model really says.  Its float32 is off by up to 9e-5 itself, by another amount on each kind of processor.
    path = fetch_model(NAME)
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float64).eval()


def test_logits_equal_transformers_in_chunks_beside_each_other(theirs):
    model = load_model(NAME, dtype="float32", max_model_len=128)
    driver = Driver(model, num_blocks=24, max_tokens=128, block_size=16)
    generator = torch.Generator().manual_seed(11)
    lengths = {0: 64, 1: 16}
    texts = {seq: torch.randint(17, model.config.vocab_size, (n,), generator=generator).tolist() for seq, n in lengths.items()}
    got = {seq: [] for seq in texts}
    for steps in ({0: (0, 40)}, {0: (40, 41), 1: (0, 9)}, {0: (41, 64), 1: (9, 16)}):
        chunks = {seq: texts[seq][low:high] for seq, (low, high) in steps.items()}
        for seq, logits in driver.step(chunks).items():
            got[seq].append(logits)
    for seq, ids in texts.items():
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids]), use_cache=False).logits[0]
        assert_logits_close(torch.cat(got[seq]), expected)


def test_config_is_read_from_the_file():
    model = load_model(NAME, load_format="dummy", max_model_len=16)
    config = model.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_positions, config.eos_token_ids, config.tie_embeddings) == (49152, 8192, (2,), True)
    assert sum(layer.bytes_per_token("float32") for layer in model.memory_layers) == 46_080
