"""Every architecture through the compiled kernels, where this installation has them: transformers' logits in float32, and the
reference executor's in bfloat16 as far as two orders of summation let them be."""

import pytest
import torch
from executing import Driver, assert_logits_close
from tiny_models import CONFIGS, VOCAB, tiny

from octavo.kernels.native import NativeExecutor, available_paths
from octavo.kernels.reference_executor import ReferenceExecutor
from octavo.models.load import load_model

IDS = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(4)).tolist()

pytestmark = pytest.mark.skipif(not available_paths(), reason="this installation has no compiled kernels")


def logits(model, make):
    driver = Driver(model, make=make)
    return torch.cat([driver.step({0: IDS[low:high]})[0] for low, high in ((0, 21), (21, 22), (22, 40))])


@pytest.mark.parametrize("name", CONFIGS)
def test_float32_logits_equal_transformers(name):
    model = load_model(tiny(name).folder, dtype="float32", max_model_len=512 if "dynamic" in name else 64)
    assert_logits_close(logits(model, NativeExecutor), tiny(name).logits(IDS))


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_is_as_near_to_float32_as_the_reference(name):
    exact = tiny(name).logits(IDS)
    model = load_model(tiny(name).folder, dtype="bfloat16", max_model_len=512 if "dynamic" in name else 64)
    native, reference = ((logits(model, make) - exact).square().mean().sqrt() for make in (NativeExecutor, ReferenceExecutor))
    assert native < 1.25 * reference
