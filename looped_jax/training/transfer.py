"""Learning rates carried from a tuned reference to another width, batch and number of tokens.

HyperP (arXiv:2603.28743), as the iso-depth scaling laws use it (arXiv:2604.21106): on the sphere of
MuonH the rate of the matrices needs no width rule, falls with the run's tokens D as D^−0.32 and
takes a factor for the batch; AdamW's rates scale with the width, and those of embedding and
unembedding alone with the batch (so does the published code).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from looped_jax.errors import UserError
from looped_jax.model.fields import Count, Positive

MATRIX_GROUP = "matrix"
BATCH_SCALED_GROUPS = ("embedding", "unembedding")  # of AdamW's


@dataclass(frozen=True)
class Transfer:
    """The reference at which the base rates were tuned, and the exponents of the rules.

    An exponent of 0 switches its rule off. UserError if a reference is not positive.
    """

    d_ref: Count  # width; 640 in arXiv:2604.21106
    batch_ref: Count  # tokens per step; 262,144
    tokens_ref: Positive  # training tokens of the reference run, see `reference_tokens`
    width_exponent: float  # AdamW groups, of d_model/d_ref; −0.5
    data_exponent: float  # matrices, of tokens/tokens_ref; −0.32
    matrix_batch_exponent: float  # matrices, of batch/batch_ref; 0.558
    adamw_batch_exponent: float  # embedding and unembedding, of batch/batch_ref; 0.558

    def __post_init__(self):
        _require_positive(d_ref=self.d_ref, batch_ref=self.batch_ref, tokens_ref=self.tokens_ref)
        for field in fields(self):
            if not math.isfinite(value := getattr(self, field.name)):
                raise UserError(f"{field.name} is {value}; it must be finite")

    def scale(
        self,
        base_rates: Mapping[str, float],
        *,
        d_model: int,
        batch_tokens: int,
        tokens: float,
    ) -> "TransferredRates":
        """Peak rates of every group for a run of this width, tokens per step and tokens in all."""
        _require_positive(d_model=d_model, batch_tokens=batch_tokens, tokens=tokens)
        width = (d_model / self.d_ref) ** self.width_exponent
        data = (tokens / self.tokens_ref) ** self.data_exponent
        batch = batch_tokens / self.batch_ref
        rows = []
        for group, base in base_rates.items():
            if group == MATRIX_GROUP:
                row = RateRow(group, base, 1.0, data, batch**self.matrix_batch_exponent)
            elif group in BATCH_SCALED_GROUPS:
                row = RateRow(group, base, width, 1.0, batch**self.adamw_batch_exponent)
            else:
                row = RateRow(group, base, width, 1.0, 1.0)
            rows.append(row)
        return TransferredRates(self, d_model, batch_tokens, tokens, tuple(rows))


@dataclass(frozen=True)
class RateRow:
    """One group's base rate and the factors it was multiplied with."""

    group: str
    base: float
    width: float
    data: float
    batch: float

    @property
    def rate(self) -> float:
        return self.base * self.width * self.data * self.batch


@dataclass(frozen=True)
class TransferredRates:
    """Peak learning rates of a run, with the way they came about."""

    transfer: Transfer
    d_model: int
    batch_tokens: int
    tokens: float
    rows: tuple[RateRow, ...]

    @property
    def rates(self) -> dict[str, float]:
        """Peak rate by parameter group."""
        return {row.group: row.rate for row in self.rows}

    def table(self) -> str:
        """Base rate, factors and scaled rate of every group, as lines of plain text."""
        t = self.transfer
        lines = [
            f"learning rates: width {self.d_model:,} (reference {t.d_ref:,}), "
            f"batch {self.batch_tokens:,} tokens ({t.batch_ref:,}), "
            f"run {self.tokens:.4g} tokens ({t.tokens_ref:.4g})",
            f"{'group':<12} {'base':>10} {'× width':>10} {'× data':>10} {'× batch':>10} "
            f"{'= rate':>10}",
        ]
        for row in self.rows:
            numbers = (row.base, row.width, row.data, row.batch, row.rate)
            lines.append(f"{row.group:<12} " + " ".join(f"{x:>10.4g}" for x in numbers))
        return "\n".join(lines)


def reference_tokens(executed_parameters: int, tokens_per_parameter: float) -> float:
    """Training tokens of the reference run, a multiple of its executed parameters.

    `executed_parameters` counts the non-embedding parameters of the reference model (width d_ref,
    the same kind of stack), each as often as a forward pass executes it: N_once + r·N_rec.
    arXiv:2604.21106 uses 10 tokens per parameter.
    """
    _require_positive(
        executed_parameters=executed_parameters, tokens_per_parameter=tokens_per_parameter
    )
    return tokens_per_parameter * executed_parameters


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise UserError(f"{name} is {value}; it must be positive")
