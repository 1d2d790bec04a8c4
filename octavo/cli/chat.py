"""`octavo chat`: a conversation in a terminal."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from octavo.cli.flags import add_flags, given
from octavo.core.errors import InvalidRequestError
from octavo.core.params import SamplingParams
from octavo.engine.config import EngineConfig

HELP = """\
/clear          forget the conversation
/system TEXT    set the system message and begin anew (without TEXT: none)
/stats          what the memory holds
/help           this list
/exit           end (also Ctrl-D); Ctrl-C ends an answer only"""


def add_parser(commands: Any) -> None:
    """Add the subcommand.  Mutates `commands`."""
    parser = commands.add_parser("chat", help="talk to a model in a terminal", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a name (smollm2-135m), a folder of safetensors, a GGUF file, or a hub id")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    add_flags(parser, SamplingParams, title="sampling", skip={"n", "logprobs", "prompt_logprobs"})
    add_flags(parser, EngineConfig, title="engine", skip={"model", "seed"})
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """An answer may be as long as the model's length allows unless --max-tokens says otherwise."""
    params = SamplingParams(**{"max_tokens": None, **given(arguments, SamplingParams)})

    from octavo.llm import LLM

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (importing it gives input() its line editing)
    with LLM(**given(arguments, EngineConfig, skip={"seed"})) as llm:
        print(llm.memory_plan, file=sys.stderr)
        print("/help lists the commands.", file=sys.stderr)
        Chat(llm, params, system=arguments.system).loop()
    return 0


def memory_lines(stats: Any) -> str:
    """What prompts got from memory, in words; then every count by its name."""
    return "\n".join(
        (
            f"{stats.hit_rate:.1%} of {stats.prompt_tokens:,} prompt tokens read from memory;"
            f" {stats.blocks_cached:,} blocks cached, {stats.blocks_shared:,} shared",
            *(f"{field:24} {value}" for field, value in stats.as_dict().items()),
        )
    )


class Chat:
    """One conversation: its history, and the commands that change it.  ask: reads a line, as `input` does."""

    def __init__(
        self,
        llm: Any,
        params: SamplingParams,
        *,
        system: str | None = None,
        ask: Callable[[str], str] | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._llm, self._params, self._ask = llm, params, ask or input
        self._out = out or sys.stdout
        self.system = system
        self.history: list[dict[str, str]] = []

    def loop(self) -> None:
        """Until /exit or the end of input.  Ctrl-C at the prompt clears the line, as a shell does."""
        while True:
            try:
                line = self._ask("> ").strip()
            except EOFError:
                self._say("")
                return
            except KeyboardInterrupt:
                self._say("")
                continue
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self.command(line)
            elif line:
                self.answer(line)

    def command(self, line: str) -> None:
        """Carry out one `/command`."""
        name, _, rest = line.partition(" ")
        if name == "/clear":
            self.history.clear()
        elif name == "/system":
            self.system = rest.strip() or None
            self.history.clear()
        elif name == "/stats":
            self._say(memory_lines(self._llm.stats()))
        else:
            self._say(HELP if name == "/help" else f"{name} is not a command.\n{HELP}")

    def answer(self, text: str) -> None:
        """Stream an answer and keep both sides in the history; what was refused leaves no trace there."""
        from octavo.cli.stream import make_requests
        from octavo.engine.interrupt import Interrupt
        from octavo.engine.stepping import steps

        asked = [*self.history, {"role": "user", "content": text}]
        pieces: list[str] = []
        begin, first, tokens = time.perf_counter(), 0.0, 0
        try:
            requests = make_requests(self._llm, [self._llm.tokenizer.encode_chat(self._with_system(asked))], self._params)
        except InvalidRequestError as error:
            self._say(f"{error.detail} (/clear forgets the conversation)")
            return
        with Interrupt() as interrupt:
            for deltas in steps(self._llm.engine, requests):
                for sample in (sample for delta in deltas for sample in delta.outputs):
                    first = first or time.perf_counter()
                    tokens += len(sample.token_ids)
                    pieces.append(sample.text)
                    print(sample.text, end="", file=self._out, flush=True)
                    if sample.finish_reason == "error":
                        self._say(f"\n{sample.error}")
                if interrupt.asked:
                    self._say(" ...")
                    break
        self._say("")
        if tokens > 1 and self._out.isatty():
            now = time.perf_counter()
            rate = (tokens - 1) / (now - first)
            self._say(f"[{tokens} tokens, first after {first - begin:.2f} s, then {rate:.1f} tokens/s]")
        self.history = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def _with_system(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        return messages if self.system is None else [{"role": "system", "content": self.system}, *messages]

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)
