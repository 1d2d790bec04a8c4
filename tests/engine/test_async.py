"""`AsyncLLM`: the engine in its own process."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from engine_models import start, tiny_llama

from octavo import AsyncLLM, SamplingParams
from octavo.core.errors import ConfigError, EngineDeadError, InvalidRequestError, ModelLoadError

PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=20, ignore_eos=True, logprobs=1)
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)


def make(**settings):
    return AsyncLLM(str(tiny_llama()), **{"dtype": "float32", "threads": 1, "num_blocks": 256, **settings})


async def collect(stream):
    deltas = [delta async for delta in stream]
    samples = [output for delta in deltas for output in delta.outputs]
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return "".join(sample.text for sample in samples), tuple(token for sample in samples for token in sample.token_ids)


async def idle(llm):
    """The engine's stats once nothing runs; fails when that takes too long."""
    for _ in range(200):
        stats = await llm.stats()
        if stats.running == stats.waiting == 0:
            await llm.check()
            return stats
        await asyncio.sleep(0.02)
    raise AssertionError("the engine never came to rest")


def test_streams_side_by_side_equal_the_library():
    prompts = [[5 + i] * (4 * i + 1) for i in range(6)]
    with start() as llm:
        expected = [llm.generate([p], PARAMS, use_tqdm=False)[0].outputs[0] for p in prompts]

    async def main():
        async with make() as llm:
            answers = await asyncio.gather(*(collect(llm.generate(prompt, PARAMS)) for prompt in prompts))
            stats = await idle(llm)
            assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
            return answers

    assert asyncio.run(main()) == [(sample.text, sample.token_ids) for sample in expected]


def test_leaving_the_iterator_aborts_and_frees():
    async def main():
        async with make() as llm:
            async for delta in llm.generate([5], LONG, request_id="left"):
                assert not delta.finished
                break
            stats = await idle(llm)
            assert stats.blocks_free + stats.blocks_cached == stats.blocks_total
            task = asyncio.create_task(collect(llm.generate([6], LONG)))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await idle(llm)).tokens_computed < 2500

    asyncio.run(main())


def test_abort_from_outside_ends_the_stream():
    async def main():
        async with make() as llm:
            reasons = []
            async for delta in llm.generate([5], LONG, request_id="mine"):
                reasons += [output.finish_reason for output in delta.outputs]
                await llm.abort("mine")
            assert reasons[-1] == "abort"
            assert not await llm.abort("mine")
            assert not await llm.abort("another")
            await idle(llm)

    asyncio.run(main())


def test_refusals_reach_the_caller_and_the_engine_lives():
    async def main():
        async with make() as llm:
            with pytest.raises(InvalidRequestError, match="max_model_len"):
                await collect(llm.generate([5] * 3000, PARAMS))
            stream = llm.generate([5], LONG, request_id="same")
            await anext(stream)
            with pytest.raises(InvalidRequestError, match="'same' is in use"):
                await collect(llm.generate([5], PARAMS, request_id="same"))
            await stream.aclose()
            await idle(llm)
            assert len((await collect(llm.generate([5], PARAMS)))[1]) == 20

    asyncio.run(main())


def test_default_parameters_and_numbers_of_numpy_cross_the_process():
    async def main():
        async with AsyncLLM(tiny_llama(), dtype="float32", threads=1, num_blocks=64) as llm:
            assert len((await collect(llm.generate([5], SamplingParams(ignore_eos=True))))[1]) == 16
            await collect(llm.generate([5], SamplingParams(temperature=np.float64(0.5), top_p=np.float32(0.9).item())))
            await collect(llm.generate("Hi"))

    asyncio.run(main())


@pytest.mark.parametrize("options", [{"priority": 1.5}, {"priority": "a"}, {"request_id": 7}, {"request_id": ""}])
def test_a_bad_option_is_refused_and_the_neighbours_live(options):
    async def main():
        async with make() as llm:
            neighbour = asyncio.create_task(collect(llm.generate([5], PARAMS)))
            with pytest.raises(InvalidRequestError):
                await collect(llm.generate([6], PARAMS, **options))
            assert len((await neighbour)[1]) == 20

    asyncio.run(main())


def test_an_id_may_come_again_and_never_gets_what_was_its_predecessors():
    async def main():
        async with make() as llm:
            expected = await collect(llm.generate([9, 9], PARAMS))
            for _ in range(30):
                stream = llm.generate([5], LONG, request_id="again")
                await anext(stream)
                await stream.aclose()
                assert await collect(llm.generate([9, 9], PARAMS, request_id="again")) == expected

    asyncio.run(main())


def test_two_first_uses_at_once_with_one_id():
    async def main():
        async with make() as llm:
            both = [asyncio.create_task(collect(llm.generate([5], PARAMS, request_id="one"))) for _ in range(2)]
            results = await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 30)
            assert sorted(isinstance(result, InvalidRequestError) for result in results) == [False, True]

    asyncio.run(main())


def test_abort_speaks_only_for_the_samples_that_still_run():
    async def main():
        async with make() as llm:
            reasons = {0: [], 1: []}
            params = SamplingParams(n=2, temperature=1.0, seed=4, max_tokens=1500, stop_token_ids=list(range(4, 30)), ignore_eos=True)
            async for delta in llm.generate([5], params, request_id="mine"):
                for output in delta.outputs:
                    if output.finish_reason:
                        reasons[output.index].append(output.finish_reason)
                if any(reasons.values()) and not all(reasons.values()):
                    await llm.abort("mine")
            assert sorted(map(len, reasons.values())) == [1, 1]

    asyncio.run(main())


def test_what_building_raises_is_raised_here(tmp_path):
    with pytest.raises(ModelLoadError):
        AsyncLLM(str(tmp_path))
    with pytest.raises(ConfigError, match="max_model_len"):
        make(max_model_len=10**6)


def test_a_killed_engine_answers_every_stream_with_its_death():
    async def main():
        llm = make()
        streams = [asyncio.create_task(collect(llm.generate([5 + i], LONG))) for i in range(3)]
        await asyncio.sleep(0.1)
        os.kill(llm._client.pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 20)
        assert all(isinstance(result, EngineDeadError) for result in results)
        assert "exit code -9" in str(results[0])
        with pytest.raises(EngineDeadError):
            await collect(llm.generate([5], PARAMS))
        with pytest.raises(EngineDeadError):
            await llm.stats()
        llm.close()

    asyncio.run(main())


def test_the_engine_process_ends_with_its_front():
    llm = make()
    pid = llm._client.pid
    llm.close()
    llm.close()
    assert not Path(f"/proc/{pid}").exists()


def test_k11_07_nothing_listens():
    async def main():
        async with make() as llm:
            await collect(llm.generate([5], PARAMS))
            sockets = {os.readlink(link) for link in Path(f"/proc/{llm._client.pid}/fd").iterdir() if link.is_symlink()}
            inodes = {name[8:-1] for name in sockets if name.startswith("socket:[")}
            listening = [
                line for table in ("tcp", "tcp6") for line in Path(f"/proc/{llm._client.pid}/net/{table}").read_text().splitlines()[1:]
            ]
            assert not [line for line in listening if line.split()[9] in inodes]

    asyncio.run(main())
