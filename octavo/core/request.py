"""`Request`: what a front hands to the engine, complete and checked."""

from dataclasses import dataclass

from octavo.core.params import BeamSearchParams, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and what to do with it.

    prompt_token_ids: at least one id, each inside the model's vocabulary.
    max_tokens: new tokens at most, resolved against the model's length (never None here).
    seed: in [0, 2**64), drawn at admission when the caller gave none; returned with the output.
    stop_token_ids: ids that end the output: the model's EOS ids (unless `ignore_eos`) and the caller's.
    bad_words_ids: `params.bad_words` as token sequences.
    arrival: the engine's order of admission; a smaller number came earlier.
    priority: lower is earlier.
    tenant, cache_salt: the namespace of its memory; requests of different namespaces never share.
    published: it computes the content of the publication of that name, and shares memory with that alone.
    beam: asks for a beam search; `params` then say what each beam reports (its likeliest tokens), and how many results are wanted (n).
    chat_template: digest of the template that was sent with it; None when the model's own, or none, made the prompt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    stop_token_ids: frozenset[int]
    prompt: str | None = None
    arrival: int = 0
    priority: int = 0
    tenant: str = "default"
    cache_salt: str = ""
    chat_template: str | None = None
    published: str | None = None
    beam: BeamSearchParams | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
