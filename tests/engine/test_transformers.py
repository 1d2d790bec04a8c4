"""The second oracle: transformers in float32, 20 varied prompts, 64 tokens each, every architecture and the real model.

Greedy answers are made step by step (a batch of 20 sequences); then transformers reads each whole sequence at once: its logits must be
ours within 1e-4 x max(1, |logit|), and its likeliest token ours wherever its top two differ by more than that.
"""

import pytest
import torch
import transformers
from executing import Driver
from tiny_models import CONFIGS, VOCAB, tiny

from octavo import LLM, SamplingParams
from octavo.kernels.native import NativeExecutor, available_paths
from octavo.models.fetch import fetch_model
from octavo.models.load import load_model

TOKENS = 64
TOLERANCE = 1e-4
REAL = "smollm2-135m"
TEXTS = [
    "The capital of France is",
    "def quicksort(items):\n",
    "Once upon a time, in a village by the sea,",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "Der schnelle braune Fuchs",
    "SELECT name, age FROM users WHERE",
    "Q: What is the tallest mountain on Earth?\nA:",
    "{",
    "To make bread you need flour,",
    "The theory of relativity was",
    "x",
    "In 1969, Apollo 11",
    "   leading spaces and\ttabs",
    "Photosynthesis is the process by which",
    "# A list of planets\n- Mercury\n-",
    "Roses are red, violets are blue,",
    "import torch\n\nclass Attention(torch.nn.Module):\n    def __init__(self",
    "The quick brown fox jumps over the lazy dog. " * 6,
]


def assert_agree(ids, prompt_len, expected, got=None):
    """expected: transformers' logits of all of `ids`; got: ours of the generated positions, where known."""
    rows = expected[prompt_len - 1 : len(ids) - 1]
    bound = TOLERANCE * rows.abs().amax(dim=1).clamp(min=1)
    if got is not None:
        assert ((got - rows).abs() <= TOLERANCE * rows.abs().clamp(min=1)).all()
    top = rows.topk(2, dim=1)
    clear = top.values[:, 0] - top.values[:, 1] > bound
    assert clear.any()
    chosen = torch.tensor(ids[prompt_len:])
    assert torch.equal(top.indices[clear, 0], chosen[clear])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_answers_as_transformers(name):
    model = tiny(name)
    driver = Driver(
        load_model(model.folder, dtype="float32", max_model_len=512 if "dynamic" in name else 128),
        make=NativeExecutor,
        num_blocks=200,
        max_tokens=1024,
    )
    assert driver.executor.name == available_paths()[0]
    generator = torch.Generator().manual_seed(len(name))
    prompts = {i: torch.randint(3, VOCAB, (1 + 3 * i,), generator=generator).tolist() for i in range(20)}
    sequences = {i: list(prompt) for i, prompt in prompts.items()}
    rows = {i: [] for i in prompts}
    chunks = prompts
    for _ in range(TOKENS):
        for i, logits in driver.step(chunks).items():
            rows[i].append(logits[-1])
            sequences[i].append(int(logits[-1].argmax()))
        chunks = {i: sequence[-1:] for i, sequence in sequences.items()}
    for i, ids in sequences.items():
        assert_agree(ids, len(prompts[i]), model.logits(ids), torch.stack(rows[i]))


@pytest.fixture(scope="module")
def theirs():
    # In float64: what the model really says.  Its float32 is off by up to 9e-5 itself, by another amount on each kind of processor.
    path = fetch_model(REAL)
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float64).eval()


def test_the_real_model_answers_as_transformers(theirs):
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with LLM(REAL, dtype="float32", num_blocks=256, max_model_len=256) as llm:
        assert llm.engine.runner.executor.name == available_paths()[0]
        outputs = llm.generate(TEXTS, params, use_tqdm=False)
    sequences = [([*output.prompt_token_ids, *output.outputs[0].token_ids], len(output.prompt_token_ids)) for output in outputs]
    driver = Driver(load_model(REAL, dtype="float32", max_model_len=256), make=NativeExecutor, num_blocks=64, max_tokens=256)
    for index, (ids, prompt_len) in enumerate(sequences):
        assert len(ids) == prompt_len + TOKENS
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids]), use_cache=False).logits[0]
        got = driver.step({index: ids})[index]
        assert_agree(ids, prompt_len, expected, got[prompt_len - 1 : len(ids) - 1])
        driver.forget(index)
