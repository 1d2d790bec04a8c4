"""The model that engine tests run: a tiny random llama with a tokenizer of single bytes and a chat template, and how to start it."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from octavo import LLM
from octavo.spec.memory import AttentionLayerSpec, MemorySpec

VOCAB = 512
SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
EOS = 1
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> tokenizers.Tokenizer:
    """The four specials, then one token for each byte: every split of a text into tokens can be forced."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIALS])
    return tokenizer


@functools.cache
def tiny_llama(max_positions: int = 2048) -> Path:
    """The model's folder: 2 layers, hidden 64, 4 heads, 2 KV heads; its head is wider than its tokenizer."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-tiny-llama-"))
    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        bos_token_id=0,
        eos_token_id=EOS,
        initializer_range=0.3,  # wide enough that a wrong K or V changes the tokens at once
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), bos_token="<s>", eos_token="</s>")
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    return folder


def start(*, max_positions: int = 2048, **settings: Any) -> LLM:
    """An engine over the tiny model: float32, one thread, 256 blocks, unless told otherwise."""
    defaults: dict[str, Any] = {"dtype": "float32", "threads": 1, "num_blocks": 256}
    if "kv_cache_memory_bytes" in settings:
        del defaults["num_blocks"]
    return LLM(str(tiny_llama(max_positions)), **defaults | settings)


def kv_spec(kv_dtype: str, block_size: int) -> MemorySpec:
    """How the tiny model's K and V lie in a block."""
    return MemorySpec((AttentionLayerSpec(num_kv_heads=2, head_dim=16),) * 2, kv_dtype, block_size)
