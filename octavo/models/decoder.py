"""`Decoder`: makes a program from the parts that decoder-only transformers are made of.

An architecture's file calls `embed`, then `attention` and `mlp` for each layer, then `head`, with its checkpoint's names; the config
says the rest (norms, biases, rotary embedding, gates).  The residual stream is float32; products read rows of the compute dtype.
"""

from collections.abc import Sequence

import torch

from octavo.core.errors import ModelLoadError
from octavo.kernels.program import AppendKV, Attention, Buffer, Embed, Experts, Linear, Matrix, Norm, Op, Program, Rope
from octavo.models.rope import rope_tables
from octavo.models.weights import WeightSource
from octavo.spec.model import ModelConfig

# An RMSNorm with this much epsilon divides by 2^50 exactly, and with this weight multiplies back: all it does is to round.
ROUND_EPS = 2.0**100
ROUND_WEIGHT = 2.0**50


class Decoder:
    """Reads tables of positions, norms and biases; matrices are read when an executor packs them.

    Raises ModelLoadError on a tensor that is missing or of the wrong shape.

    dtype: of products and their inputs, float32 or bfloat16.  max_model_len: positions that the tables cover.
    """

    def __init__(self, config: ModelConfig, weights: WeightSource, *, dtype: torch.dtype, max_model_len: int) -> None:
        self.config = config
        self.notices: list[str] = []
        self._weights = weights
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._rope: Rope | None = None if config.rope is None else rope_tables(config.rope, max_model_len)
        self._body: list[Op] = []
        self._head: list[Op] = []
        self._logit_inputs: list[Buffer] = []
        self._stream, self._other_stream = "hidden", "hidden_after"
        self._drop_prefix = ""
        self._table_name = ""
        self._table: Matrix | None = None

    def embed(self, table: str, *, positions: str | None = None, project: str | None = None) -> None:
        """Token rows (and learned positions) into the residual stream.

        project: the product that widens token rows, where the config's embed_size isn't hidden_size.  It is folded into the table:
        one product less per token, for a wider table.
        """
        config = self.config
        self._find_prefix(table)
        self._table_name = table
        self._table = matrix = self._matrix(f"{table}.weight", (config.vocab_size, config.embed_size))
        if project is not None and config.embed_size != config.hidden_size:
            widen = self._matrix(f"{project}.weight", (config.hidden_size, config.embed_size))
            matrix = _folded(matrix, widen, self._dtype)
        learned = None
        if positions is not None:
            learned = self._get(f"{positions}.weight", (config.max_positions + config.position_offset, config.hidden_size))
        self._body.append(Embed(matrix, self._stream, config.embed_scale, learned, config.position_offset))
        if not config.pre_norm:
            self._body.append(self._rounded("normed"))

    def attention(self, layer: int, *, norm: str, qkv: Sequence[str], out: str, head_norms: tuple[str, str] | None = None) -> None:
        """A layer's attention, residual and norm.  qkv: three products, or the name of one that holds all three."""
        config = self.config
        sizes = (config.query_size, config.kv_size, config.kv_size)
        fused = self._linear("normed", "qkv", qkv, sizes, config.hidden_size, config.qkv_bias)
        q_norm, k_norm = (
            (self._norm_weight(name, config.head_dim) for name in head_norms) if config.qk_norm and head_norms else (None, None)
        )
        ops: list[Op] = [
            fused,
            AppendKV("qkv", "q", layer, config.num_heads, self._rope, q_norm, k_norm, config.norm_eps),
            Attention("q", "mixed", layer, config.num_heads, config.attention_scale(layer)),
            self._linear("mixed", self._stream, (out,), (config.hidden_size,), config.query_size, config.out_bias, accumulate=True),
        ]
        self._with_norm(norm, ops)

    def mlp(self, *, norm: str, up: Sequence[str], down: str) -> None:
        """A layer's MLP, residual and norm.  up: gate and up of a gated one (or the name of one product that holds both)."""
        config = self.config
        sizes = (config.intermediate_size,) * (2 if config.gated else 1)
        ops: list[Op] = [
            self._linear("normed", "inner", up, sizes, config.hidden_size, config.mlp_bias, activated=True),
            self._linear(
                "inner", self._stream, (down,), (config.hidden_size,), config.intermediate_size, config.mlp_bias, accumulate=True
            ),
        ]
        self._with_norm(norm, ops)

    def experts(self, *, norm: str, router: str, expert: str, gate: str, up: str, down: str) -> None:
        """A layer's mixture of experts, residual and norm.  expert: the name of one ("{}": its number); gate, up, down: inside it."""
        config = self.config
        experts = config.experts
        if experts is None:
            raise ModelLoadError(f"{config.source}: the {config.architecture} program has experts, its config has none")
        names = [expert.format(i) for i in range(experts.count)]
        sizes, width = (experts.inner_size, experts.inner_size), config.hidden_size
        ins = [self._linear("normed", "", (f"{name}.{gate}", f"{name}.{up}"), sizes, width, False, activated=True) for name in names]
        outs = [self._linear("", self._stream, (f"{name}.{down}",), (width,), experts.inner_size, False) for name in names]
        ops: list[Op] = [
            self._linear("normed", "scores", (router,), (experts.count,), width, False),
            Experts(
                x="normed",
                scores="scores",
                out=self._stream,
                gathered="gathered",
                inner="expert_inner",
                parts="parts",
                up=tuple(op.matrix for op in ins),
                down=tuple(op.matrix for op in outs),
                top_k=experts.per_token,
                normalize=experts.normalize,
                activation=config.activation,
            ),
        ]
        self._with_norm(norm, ops)

    def head(self, *, norm: str, lm_head: str, project: str | None = None) -> None:
        """From hidden rows to logits.  project: narrows the rows, where the config's embed_size isn't hidden_size."""
        config = self.config
        self._head.append(self._norm(norm, "normed") if config.final_norm else self._rounded("normed"))
        source = "normed"
        if project is not None and config.embed_size != config.hidden_size:
            self._logit_inputs.append(Buffer("narrowed", config.embed_size, "compute"))
            self._head.append(self._linear("normed", "narrowed", (project,), (config.embed_size,), config.hidden_size, bias=False))
            source = "narrowed"
        bias = self._vector(f"{lm_head}.bias", config.vocab_size) if self._holds(f"{lm_head}.bias") else None
        self._head.append(Linear(source, "logits", self._output_matrix(f"{lm_head}.weight"), bias))

    def program(self) -> Program:
        config = self.config
        hidden, normed = Buffer("hidden", config.hidden_size, "float32"), Buffer("normed", config.hidden_size, "compute")
        buffers = [
            hidden,
            normed,
            Buffer("qkv", config.query_size + 2 * config.kv_size, "float32"),
            Buffer("q", config.query_size, "compute"),
            Buffer("mixed", config.query_size, "compute"),
            Buffer("inner", config.intermediate_size, "compute"),
        ]
        if not config.pre_norm:
            buffers.append(Buffer("hidden_after", config.hidden_size, "float32"))
        if config.experts is not None:
            choices = config.experts.per_token
            buffers += [
                Buffer("scores", config.experts.count, "float32"),
                Buffer("gathered", config.hidden_size, "compute", choices),
                Buffer("expert_inner", config.experts.inner_size, "compute", choices),
                Buffer("parts", config.hidden_size, "float32", choices),
            ]
        return Program(
            buffers=tuple(buffers),
            body=tuple(self._body),
            head_buffers=(hidden, normed, *self._logit_inputs, Buffer("logits", config.vocab_size, "float32")),
            head=tuple(self._head),
            vocab_size=config.vocab_size,
            max_positions=self._max_model_len,
            compute_dtype=self._dtype,
        )

    def _with_norm(self, norm: str, ops: list[Op]) -> None:
        """Norm before the part; or after its residual, into the next part's input and, unrounded, into the other stream."""
        if self.config.pre_norm:
            self._body += [self._norm(norm, "normed"), *ops]
            return
        to_input = self._norm(norm, "normed")
        to_stream = Norm(to_input.kind, to_input.x, self._other_stream, to_input.weight, to_input.eps, to_input.bias)
        self._body += [*ops, to_input, to_stream]
        self._stream, self._other_stream = self._other_stream, self._stream

    def _norm(self, name: str, out: str) -> Norm:
        config = self.config
        weight = self._norm_weight(name, config.hidden_size)
        bias = self._vector(f"{name}.bias", config.hidden_size) if config.norm == "layer" else None
        return Norm(config.norm, self._stream, out, weight, config.norm_eps, bias)

    def _norm_weight(self, name: str, width: int) -> torch.Tensor:
        return self._vector(f"{name}.weight", width) + self.config.norm_offset

    def _rounded(self, out: str) -> Norm:
        return Norm("rms", self._stream, out, torch.full((self.config.hidden_size,), ROUND_WEIGHT), ROUND_EPS)

    def _linear(
        self,
        x: str,
        out: str,
        names: Sequence[str],
        sizes: Sequence[int],
        in_features: int,
        bias: bool,
        *,
        activated: bool = False,
        accumulate: bool = False,
    ) -> Linear:
        """One product of the named parts, one below the other; `sizes` add up to its rows, however many names there are."""
        parts = list(zip(names, sizes if len(names) == len(sizes) else (sum(sizes),), strict=True))
        stack = [(f"{name}.weight", size) for name, size in parts]
        for name, size in stack:
            self._expect(name, self._stored_shape(size, in_features))
        bias_rows = torch.cat([self._vector(f"{name}.bias", size) for name, size in parts]) if bias else None
        matrix = Matrix((sum(sizes), in_features), lambda: self._stacked(stack, in_features), activated and self.config.gated)
        return Linear(x, out, matrix, bias_rows, self.config.activation if activated else "none", accumulate)

    def _stacked(self, parts: Sequence[tuple[str, int]], in_features: int) -> torch.Tensor:
        """Products' weights as [out, in], one below the other in the compute dtype; at most one part is held twice."""

        def part(name: str, rows: int) -> torch.Tensor:
            stored = self._get(name, self._stored_shape(rows, in_features))
            return stored.T if self.config.in_out_linears else stored

        if len(parts) == 1:
            return part(*parts[0]).contiguous()
        first = part(*parts[0])
        whole = torch.empty(sum(rows for _, rows in parts), in_features, dtype=self._dtype)
        low = 0
        for index, (name, rows) in enumerate(parts):
            whole[low : low + rows].copy_(part(name, rows) if index else first)
            low += rows
        return whole

    def _output_matrix(self, name: str) -> Matrix:
        """The table itself when it is tied, or when the checkpoint has no other."""
        config = self.config
        if self._table is None:
            raise ModelLoadError(f"{config.source}: the {config.architecture} program has a head before its table")
        shape = (config.vocab_size, config.embed_size)
        if not self._holds(name):
            if not config.tie_embeddings:
                self.notices.append(f"{name} isn't in the checkpoint: the token embedding {self._table_name} serves as output")
            return self._table
        if not config.tie_embeddings:
            return self._matrix(name, shape)
        head = self._matrix(name, shape)
        if torch.equal(head.read(), self._table.read()):
            return self._table
        self.notices.append(f"{name} differs from the token embedding although the config ties them: {name} is used")
        return head

    def _matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """A tensor as it is stored, to be read when it is packed."""
        self._expect(name, shape)
        return Matrix(shape, lambda: self._get(name, shape))

    def _stored_shape(self, rows: int, in_features: int) -> tuple[int, int]:
        return (in_features, rows) if self.config.in_out_linears else (rows, in_features)

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        self._weights.expect(name.removeprefix(self._drop_prefix), shape)

    def _find_prefix(self, name: str) -> None:
        """Checkpoints saved from the model without its head leave out the first part of every name."""
        first, _, rest = name.partition(".")
        if not self._holds(f"{name}.weight") and f"{rest}.weight" in self._weights:
            self._drop_prefix = first + "."

    def _holds(self, name: str) -> bool:
        return name.removeprefix(self._drop_prefix) in self._weights

    def _vector(self, name: str, width: int) -> torch.Tensor:
        return self._weights.get(name.removeprefix(self._drop_prefix), (width,), torch.float32)

    def _get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._weights.get(name.removeprefix(self._drop_prefix), shape, self._dtype)


def _folded(table: Matrix, widen: Matrix, dtype: torch.dtype) -> Matrix:
    """The table with each row widened."""
    return Matrix((table.shape[0], widen.shape[0]), lambda: (table.read().float() @ widen.read().float().T).to(dtype))
