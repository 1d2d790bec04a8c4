"""`octavo generate`: answer prompts once, and say what the memory did."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from octavo.cli.flags import add_flags, given
from octavo.cli.prompts import add_prompt_flags, read_prompts
from octavo.core.errors import InvalidRequestError
from octavo.core.outputs import RequestOutput
from octavo.core.params import SamplingParams
from octavo.engine.config import EngineConfig

INTERRUPTED = 130


def add_parser(commands: Any) -> None:
    """Add the subcommand.  Mutates `commands`."""
    parser = commands.add_parser("generate", help="answer prompts", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a name (smollm2-135m), a folder of safetensors, a GGUF file, or a hub id")
    add_prompt_flags(parser)
    parser.add_argument("--chat", action="store_true", help="send each prompt as a user's message through the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="with --chat: the system message before it")
    parser.add_argument("--json", action="store_true", help="one JSON object per prompt and line, as its output ends up")
    parser.add_argument("-q", "--quiet", action="store_true", help="no memory plan, no memory report")
    add_flags(parser, SamplingParams, title="sampling")
    add_flags(parser, EngineConfig, title="engine", skip={"model", "seed"})
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Everything that can be wrong with the command is found before the model is loaded."""
    params = SamplingParams(**given(arguments, SamplingParams))
    prompts: Sequence[Any] = read_prompts(arguments, chat=arguments.chat)

    from octavo.llm import LLM

    with LLM(**given(arguments, EngineConfig, skip={"seed"})) as llm:
        if not arguments.quiet:
            print(llm.memory_plan, file=sys.stderr)
        asked = None
        if arguments.chat:
            chats = [messages(prompt, arguments.system) for prompt in prompts]
            asked = [chat[-1]["content"] for chat in chats]
            prompts = encode_chats(llm.tokenizer, chats)
        return answer(llm, prompts, params, arguments, sys.stdout, sys.stderr, asked)


def messages(prompt: Any, system: str | None) -> list[dict[str, str]]:
    """The conversation that one prompt is."""
    text = prompt["prompt"] if isinstance(prompt, Mapping) else prompt
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def encode_chats(tokenizer: Any, conversations: Sequence[Sequence[Mapping[str, str]]]) -> list[list[int]]:
    """Each conversation's token ids.  Raises InvalidRequestError naming the index of one that the model's template refuses."""
    encoded = []
    for index, conversation in enumerate(conversations):
        try:
            encoded.append(tokenizer.encode_chat(conversation))
        except InvalidRequestError as error:
            raise InvalidRequestError(error.detail, index=index) from error
    return encoded


def answer(
    llm: Any,
    prompts: Sequence[Any],
    params: SamplingParams,
    arguments: argparse.Namespace,
    out: TextIO,
    err: TextIO,
    asked: Sequence[str] | None = None,
) -> int:
    """Generate, print, report.  asked: what stands above each answer, when that isn't the prompt itself.

    Returns the exit code: 0, 1 when an output failed, 130 after Ctrl-C.
    """
    from octavo.cli.report import memory_report
    from octavo.cli.stream import make_requests
    from octavo.cli.watch import PoolWatch
    from octavo.engine.collect import Collector
    from octavo.engine.interrupt import Interrupt
    from octavo.engine.stepping import steps

    requests = make_requests(llm, prompts, params)
    collectors = {request.request_id: Collector(request) for request in requests}
    streaming = len(requests) == 1 and params.n == 1 and out.isatty() and not arguments.json
    watch = PoolWatch(llm.stats)
    begin = time.perf_counter()
    tokens_out = 0
    with Interrupt() as interrupt:
        for deltas in steps(llm.engine, requests):
            watch()
            for delta in deltas:
                collectors[delta.request_id].add(delta)
                tokens_out += sum(len(sample.token_ids) for sample in delta.outputs)
                if streaming:
                    print(delta.outputs[0].text, end="", file=out, flush=True)
            if interrupt.asked:
                break
    seconds = time.perf_counter() - begin
    outputs = [collector.output(unfinished="abort") for collector in collectors.values()]
    if streaming:
        print(file=out)
    else:
        show(outputs, arguments.json, out, asked)
    failed = show_errors(outputs, err)
    if not arguments.quiet:
        plan = llm.memory_plan.as_dict()
        report = memory_report(plan, llm.stats(), watch=watch, seconds=seconds, tokens_out=tokens_out)
        print(report, file=err)
    if interrupt.asked:
        return INTERRUPTED
    return 1 if failed else 0


def show(outputs: Sequence[RequestOutput], as_json: bool, out: TextIO, asked: Sequence[str] | None = None) -> None:
    """Print finished outputs: JSON lines; one text as it is; or several, each under its prompt."""
    for number, output in enumerate(outputs):
        if as_json:
            print(json.dumps({"index": number, **dataclasses.asdict(output)}, ensure_ascii=False), file=out)
            continue
        if len(outputs) > 1:
            prompt = output.prompt if asked is None else asked[number]
            print(f"[{number}] {prompt if prompt is not None else f'{len(output.prompt_token_ids)} token ids'}", file=out)
        for sample in output.outputs:
            print(sample.text if len(output.outputs) == 1 else f"({sample.index}) {sample.text}", file=out)
        if len(outputs) > 1:
            print(file=out)


def show_errors(outputs: Sequence[RequestOutput], err: TextIO) -> int:
    """Name every sample that failed, and return how many did."""
    failed = 0
    for number, output in enumerate(outputs):
        for sample in output.outputs:
            if sample.finish_reason == "error":
                failed += 1
                print(f"octavo: prompt {number}, sample {sample.index}: {sample.error}", file=err)
    return failed
