"""`build_engine`: from an `EngineConfig` to an engine that can serve, in the order that refuses early and takes memory late."""

import logging
from dataclasses import dataclass, replace

from octavo.core.cache_key import CacheKey
from octavo.core.errors import CapacityError, ConfigError
from octavo.engine.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.identity import cache_key_of
from octavo.engine.inputs import EngineLimits
from octavo.engine.processor import OutputProcessor
from octavo.kernels.choice import check_kernels, make_executor, make_sampling_ops, matrix_bytes_for
from octavo.kernels.sizes import workspace_bytes_for
from octavo.kv.layouts import make_kv_cache
from octavo.models.checkpoint import load_config, tokenizer_source
from octavo.models.load import LoadedModel, load_model
from octavo.runner.arena import Arena
from octavo.runner.runner import TorchRunner, copy_seconds, warm_up
from octavo.sampling.sampler import Sampler
from octavo.scheduler.scheduler import Scheduler
from octavo.spec.budget import MemoryPlan, plan_memory
from octavo.spec.host import read_host_memory, usable_cpus
from octavo.spec.memory import MemorySpec
from octavo.text.loading import load_tokenizer as load_text_tokenizer
from octavo.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Rows of logits that exist at once.  More would cost memory (a row is a float32 per vocabulary entry) and gain no speed: at this many
# rows the head's product no longer waits for its weights.
MAX_LOGIT_ROWS = 64
MAX_THREADS_PER_CPU = 4


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what its front must know of it."""

    config: EngineConfig
    engine: Engine
    tokenizer: Tokenizer
    limits: EngineLimits
    plan: MemoryPlan
    cache_key: CacheKey


def build_engine(config: EngineConfig) -> BuiltEngine:
    """Load the model, size the pool, bind the kernels, warm up.

    Raises ModelLoadError kin for the files, CapacityError for memory, ConfigError for settings that contradict the model.
    """
    threads = _threads(config)
    check_kernels(config.kernels)
    load_config(config.model, revision=config.revision)  # what the model is comes first: it says most of what can be wrong
    tokenizer = load_tokenizer(config)
    model = load_model(
        config.model,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        load_format=config.load_format,
        revision=config.revision,
        seed=config.seed,
    )
    for notice in model.notices:
        logger.warning(notice)
    kv_dtype = model.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    spec = MemorySpec(model.memory_layers, kv_dtype, config.block_size)
    plan = _size_pool(config, model, spec, threads)
    manager = make_kv_cache(
        num_blocks=plan.num_blocks,
        block_size=config.block_size,
        max_model_len=model.max_model_len,
        kv_layout=config.kv_layout,
        reserve=config.reserve,
        prefix_index=config.prefix_index if config.enable_prefix_caching else None,
        eviction=config.eviction,
        recompute_cost=model.config.relative_cost,
        quotas={tenant: tokens // config.block_size for tenant, tokens in (config.cache_quotas or {}).items()},
        default_quota=None if config.default_cache_quota is None else config.default_cache_quota // config.block_size,
        pin_share=config.pin_share,
    )
    executor = make_executor(
        config.kernels,
        model.program,
        spec,
        Arena(plan.num_blocks, spec.block_bytes).bytes,
        max_tokens=config.max_num_batched_tokens,
        max_logit_rows=_logit_rows(config),
        threads=threads,
    )
    plan = replace(plan, weights_bytes=executor.weight_bytes(), workspace_bytes=executor.workspace_bytes())
    runner = TorchRunner(
        executor,
        Sampler(model.config.vocab_size, make_sampling_ops(config.kernels, threads)),
        # Each running sequence takes a row of every step, so no more than that can run.
        max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_blocks_per_seq=min(plan.num_blocks, spec.blocks_for(model.max_model_len)),
        max_logit_rows=_logit_rows(config),
        contiguous=config.kv_layout == "reserved",
    )
    warm_up(executor, min(config.max_num_batched_tokens, 64))
    cache_key = cache_key_of(model, tokenizer, spec, kernels=executor.name, revision=config.revision)
    scheduler = Scheduler(
        manager,
        cache_key=cache_key,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        batching=config.batching,
        target_step_seconds=config.target_step_seconds,
        copy_seconds=copy_seconds(executor, plan.num_blocks),
    )
    limits = EngineLimits(
        vocab_size=model.config.vocab_size,
        max_model_len=model.max_model_len,
        usable_tokens=plan.capacity_tokens,
        eos_token_ids=tuple(sorted({*model.config.eos_token_ids, *tokenizer.eos_token_ids})),
        pool=plan.sized_by,
    )
    return BuiltEngine(config, Engine(scheduler, runner, OutputProcessor(tokenizer)), tokenizer, limits, plan, cache_key)


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The tokenizer alone: what a front in another process needs."""
    return load_text_tokenizer(tokenizer_source(config.model, revision=config.revision))


def _threads(config: EngineConfig) -> int:
    """All that this process may use, or as many as asked for.  Raises ConfigError for a team that would mostly wait for itself."""
    cpus = usable_cpus()
    if config.threads is not None and config.threads > MAX_THREADS_PER_CPU * cpus:
        raise ConfigError(
            f"threads={config.threads}, and this process may use {cpus} CPUs: the threads of a step wait for each other, so more"
            f" of them than CPUs only slow it down; set threads to at most {cpus}, or leave it out"
        )
    return config.threads or cpus


def _size_pool(config: EngineConfig, model: LoadedModel, spec: MemorySpec, threads: int) -> MemoryPlan:
    """How many blocks: from what is free now, less what the executor is still to take.  Warns of a pool below one sequence."""
    workspaces = workspace_bytes_for(model.program, spec, config.max_num_batched_tokens, _logit_rows(config), threads)
    matrices = matrix_bytes_for(config.kernels, model.program)
    available = read_host_memory().available
    if workspaces + matrices > available:
        raise CapacityError(
            f"the weights take {matrices:,} bytes and the workspaces {workspaces:,}, and {available:,} are free; lower"
            f" max_num_batched_tokens={config.max_num_batched_tokens} or max_model_len={model.max_model_len}"
        )
    plan = plan_memory(
        spec,
        weights_bytes=matrices,
        workspace_bytes=workspaces,
        available_bytes=available - workspaces - matrices,
        max_model_len=model.max_model_len,
        num_blocks=config.num_blocks,
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        memory_utilization=config.memory_utilization,
    )
    if plan.capacity_tokens < model.max_model_len:
        logger.warning(
            "the KV cache holds %d tokens (%s), fewer than max_model_len=%d: longer requests are refused; num_blocks=%d serves them",
            plan.capacity_tokens,
            plan.sized_by,
            model.max_model_len,
            spec.blocks_for(model.max_model_len),
        )
    return plan


def _logit_rows(config: EngineConfig) -> int:
    return min(MAX_LOGIT_ROWS, config.max_num_batched_tokens)
