"""Flags come from the settings' dataclasses, one by one."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import pytest

from octavo.cli.flags import add_flags, field_texts, given
from octavo.cli.main import build_parser
from octavo.core.params import SamplingParams
from octavo.engine.config import EngineConfig
from octavo.spec.model import LoadFormat


@dataclasses.dataclass
class Sample:
    """Nothing of interest.

    mode: how.  size_bytes, count: how much,
        and how many: both.
    flag: whether it is so.

    After: not a field.
    """

    mode: Literal["fast", "slow"] = "fast"
    size_bytes: int | None = None
    count: int | None = 3
    share: float = 0.5
    flag: bool = True
    ids: list[int] | tuple[int, ...] | None = None
    texts: str | Sequence[str] | None = None
    table: dict[int, float] | None = None
    pairs: Mapping[str, int] | None = None


def parse(*argv: str, cls: type = Sample, **options: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, cls, title="sample", **options)
    return given(parser.parse_args(argv), cls)


def test_what_is_not_given_is_left_to_the_dataclass() -> None:
    assert parse() == {}
    assert not SamplingParams(**parse(cls=SamplingParams)).max_tokens_given


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ("--mode slow", {"mode": "slow"}),
        ("--size-bytes 1000", {"size_bytes": 1000}),
        ("--size-bytes 2GiB", {"size_bytes": 2 * 2**30}),
        ("--size-bytes 2G", {"size_bytes": 2 * 2**30}),
        ("--size-bytes 2GB", {"size_bytes": 2 * 10**9}),
        ("--size-bytes 1.5k", {"size_bytes": 1536}),
        ("--count none", {"count": None}),
        ("--count 12", {"count": 12}),
        ("--share 0.25", {"share": 0.25}),
        ("--no-flag", {"flag": False}),
        ("--flag", {"flag": True}),
        ("--ids 1,2 --ids 3", {"ids": [1, 2, 3]}),
        ("--texts a --texts b,c", {"texts": ["a", "b,c"]}),
        ('--table {"3":1.5}', {"table": {"3": 1.5}}),
        ("--pairs a=5 --pairs b=c=0", {"pairs": {"a": 5, "b=c": 0}}),
    ],
)
def test_values(argv: str, value: dict[str, Any]) -> None:
    assert parse(*argv.split()) == value


@pytest.mark.parametrize(
    "argv",
    [
        "--mode no",
        "--size-bytes 2X",
        "--count x",
        "--ids 1,x",
        "--table [1]",
        "--table {",
        "--share",
        "--pairs a",
        "--pairs a=b",
        "--pairs a=1 --pairs a=2",
    ],
)
def test_a_wrong_value_is_a_usage_error(argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*argv.split())
    assert ended.value.code == 2
    assert argv.split()[0] in capsys.readouterr().err


def test_texts_come_from_the_docstring() -> None:
    assert field_texts(Sample) == {
        "mode": "how.",
        "size_bytes": "how much, and how many: both.",
        "count": "how much, and how many: both.",
        "flag": "whether it is so.",
    }
    texts = field_texts(EngineConfig)
    assert texts["max_num_seqs"] == "sequences that run at once."
    assert texts["max_num_batched_tokens"] == "tokens computed in one step."
    assert "Raises" not in " ".join(field_texts(SamplingParams).values())


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_every_setting_has_its_flag(command: str) -> None:
    arguments = ["--max-num-seqs", "7", "--kv-cache-memory-bytes", "1GiB", "--no-enable-prefix-caching", "--threads", "2"]
    namespace = build_parser().parse_args([command, "some-model", *arguments, "--temperature", "0", "--seed", "9"])
    config = EngineConfig(**given(namespace, EngineConfig, skip={"seed"}))
    assert (config.model, config.max_num_seqs, config.kv_cache_memory_bytes, config.threads) == ("some-model", 7, 2**30, 2)
    assert config.enable_prefix_caching is False and config.seed == 0
    quotas = ["--cache-quotas", "a=160", "--cache-quotas", "b=0", "--default-cache-quota", "32", "--pin-share", "0.25"]
    caching = build_parser().parse_args([command, "some-model", *quotas, "--prefix-index", "radix", "--eviction", "cost"])
    config = EngineConfig(**given(caching, EngineConfig, skip={"seed"}))
    assert (config.cache_quotas, config.default_cache_quota, config.pin_share) == ({"a": 160, "b": 0}, 32, 0.25)
    assert (config.prefix_index, config.eviction, config.enable_prefix_caching) == ("radix", "cost", True)
    params = SamplingParams(**given(namespace, SamplingParams))
    assert (params.temperature, params.seed) == (0.0, 9)
    missing = {field.name for field in dataclasses.fields(EngineConfig)} - {"model"}
    help_text = next(iter(build_parser()._subparsers._group_actions)).choices[command].format_help()  # type: ignore[union-attr]
    assert {name for name in missing if "--" + name.replace("_", "-") not in help_text} == set()


@pytest.mark.parametrize("load_format", get_args(LoadFormat))
def test_every_load_format_is_a_setting(load_format: str) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, EngineConfig, title="engine", skip={"model"})
    namespace = parser.parse_args(["--load-format", load_format])
    assert EngineConfig(model="m", **given(namespace, EngineConfig)).load_format == load_format
