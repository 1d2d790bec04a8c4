"""The sampler's semantics once more, written as plainly as possible, for small vocabularies."""

import math

import numpy as np

from octavo.core.params import SamplingParams
from octavo.core.plan import SequenceStart


def start(seq_id=0, tokens=(1, 2), prompt_len=None, stop=(), bad=(), seed=1, sample_index=0, **params) -> SequenceStart:
    prompt_len = len(tokens) if prompt_len is None else prompt_len
    return SequenceStart(
        seq_id, tuple(tokens), prompt_len, SamplingParams(**params), seed, sample_index, frozenset(stop), bad_words_ids=tuple(bad)
    )


def edited_logits(logits: list[float], begin: SequenceStart, output: list[int]) -> list[float]:
    """Masks, bias and penalties, token by token, in float32."""
    params = begin.params
    prompt = begin.tokens[: begin.prompt_len]
    result = []
    for token, raw in enumerate(logits):
        value = np.float32(raw)
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            value = np.float32(-math.inf)
        for word in begin.bad_words_ids:
            if word[-1] == token and output[len(output) - (len(word) - 1) :] == list(word[:-1]):
                value = np.float32(-math.inf)
        if len(output) < params.min_tokens and token in begin.stop_token_ids:
            value = np.float32(-math.inf)
        value += np.float32((params.logit_bias or {}).get(token, 0.0))
        if token in prompt or token in output:
            factor = np.float32(params.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        value -= np.float32(params.frequency_penalty) * np.float32(output.count(token))
        value -= np.float32(params.presence_penalty) * np.float32(token in output)
        result.append(float(value))
    return result


def distribution(logits: list[float], params: SamplingParams) -> list[float]:
    """The exact probability of each token after temperature, min_p, top_k and top_p."""
    ranked = sorted((token for token in range(len(logits)) if logits[token] > -math.inf), key=lambda t: (-logits[t], t))
    top = logits[ranked[0]]
    weight = {token: math.exp((logits[token] - top) / params.temperature) for token in ranked}
    ranked = [token for token in ranked if weight[token] >= params.min_p and weight[token] > 0]
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total = math.fsum(weight[token] for token in ranked)
    kept, held = [], 0.0
    for token in ranked:
        if params.top_p < 1 and kept and held >= params.top_p * total:
            break
        kept.append(token)
        held += weight[token]
    return [weight[token] / held if token in kept else 0.0 for token in range(len(logits))]
