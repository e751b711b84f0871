"""RunConfig: everything a run is, checked and typed, from an ml_collections tree.

configs/base.py documents every key. Nothing here has a default: a key that is missing, unknown, of
another type or out of bounds is an error that names it.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from ml_collections import ConfigDict

from looped_jax.errors import UserError
from looped_jax.model import accounting
from looped_jax.model.config import ModelConfig
from looped_jax.model.fields import (
    Bounds,
    Count,
    CountOrZero,
    Decay,
    Positive,
    PositiveOrZero,
    Share,
    from_tree,
)
from looped_jax.training.depth import DepthConfig
from looped_jax.training.transfer import Transfer

# Keys that may differ between the launches of one run: they change its numbers by the order of
# sums at most (with dropout, microbatches draw masks of their own).
MAY_CHANGE = (
    "name", "checkpoint", "log", "mesh", "processes", "profile", "data.folder",
    "data.microbatches", "data.verify",
)  # fmt: skip

# What a random generator takes: uint32.
Seed = Annotated[int, Bounds(least=0, most=2**32 - 1)]


@dataclasses.dataclass(frozen=True)
class DataConfig:
    folder: str
    sequence_length: Count
    batch_size: Count
    microbatches: Count
    verify: bool


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """How long a run trains: exactly one of the three is above 0."""

    steps: CountOrZero
    tokens: PositiveOrZero
    flops: PositiveOrZero


@dataclasses.dataclass(frozen=True)
class LossConfig:
    supervision: Literal["last", "every", "by_loop"]
    loop_weights: tuple[PositiveOrZero, ...]
    norm_penalty: PositiveOrZero
    chunk: Count


class MuonHRule(NamedTuple):
    """What the compiled MuonH + AdamW update depends on; rates and budget are data."""

    momentum: float
    b1: float
    b2: float
    eps: float


class AdamWRule(NamedTuple):
    """What the compiled AdamW update depends on; rate and budget are data."""

    b1: float
    b2: float
    eps: float
    decay: float
    decayed_groups: tuple[str, ...]
    clip_norm: float | None


@dataclasses.dataclass(frozen=True)
class Rates:
    """Peak learning rates at the reference of `Transfer`, by parameter group."""

    matrix: PositiveOrZero
    embedding: PositiveOrZero
    unembedding: PositiveOrZero
    norm: PositiveOrZero
    lane: PositiveOrZero
    bias: PositiveOrZero


@dataclasses.dataclass(frozen=True)
class MuonHConfig:
    kind: Literal["muonh_adamw"]
    momentum: Decay
    b1: Decay
    b2: Decay
    eps: Positive
    warmup_steps: CountOrZero
    warmdown_share: Share
    final_fraction: Share
    rates: Rates
    transfer: Transfer

    @property
    def rule(self) -> MuonHRule:
        return MuonHRule(self.momentum, self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    kind: Literal["adamw"]
    b1: Decay
    b2: Decay
    eps: Positive
    rate: PositiveOrZero
    decay: PositiveOrZero
    decayed_groups: tuple[str, ...]
    clip_norm: Positive | None
    warmup_steps: CountOrZero
    warmdown_share: Share
    final_fraction: Share

    @property
    def rule(self) -> AdamWRule:
        return AdamWRule(
            self.b1, self.b2, self.eps, self.decay, self.decayed_groups, self.clip_norm
        )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every_steps: CountOrZero
    every_minutes: PositiveOrZero
    milestones: tuple[Count, ...]
    keep: Count


@dataclasses.dataclass(frozen=True)
class LogConfig:
    every_steps: Count


@dataclasses.dataclass(frozen=True)
class ProfileConfig:
    """Steps of a profiler trace: first and last, or none."""

    steps: tuple[Count, ...]

    def __post_init__(self) -> None:
        if self.steps and not (len(self.steps) == 2 and self.steps[0] <= self.steps[1]):
            raise UserError(
                f"profile.steps = {self.steps}; allowed: (first, last), or () for no trace"
            )


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    every_steps: CountOrZero
    batch_size: Count
    max_windows: CountOrZero


@dataclasses.dataclass(frozen=True)
class ProcessesConfig:
    count: Count
    connect_seconds: Count
    stall_minutes: PositiveOrZero


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A resolved run. `steps` is the budget in optimiser steps, whatever it was given in."""

    name: str
    study: str
    seed: Seed
    init_from: str
    init_from_step: CountOrZero
    model: ModelConfig
    data: DataConfig
    budget: BudgetConfig
    depth: DepthConfig
    loss: LossConfig
    optimizer: MuonHConfig | AdamWConfig
    checkpoint: CheckpointConfig
    log: LogConfig
    profile: ProfileConfig
    evaluation: EvaluationConfig
    mesh: str
    processes: ProcessesConfig

    @property
    def batch_tokens(self) -> int:
        """Tokens per optimiser step over all devices."""
        return self.data.batch_size * self.data.sequence_length

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token at the mean depth."""
        return accounting.train_flops_per_token(
            self.model, self.data.sequence_length, self.depth.mean
        )

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run.

        Raises:
          UserError: the budget is less than one step.
        """
        budget = self.budget
        if budget.steps:
            steps, given = budget.steps, f"budget.steps = {budget.steps}"
        elif budget.tokens:
            steps = round(budget.tokens / self.batch_tokens)
            given = f"budget.tokens = {budget.tokens:g}"
        else:
            steps = round(budget.flops / (self.flops_per_token * self.batch_tokens))
            given = f"budget.flops = {budget.flops:g}"
        if steps < 1:
            raise UserError(
                f"{given} is less than one step of {self.batch_tokens} tokens "
                f"({self.flops_per_token * self.batch_tokens:.3g} FLOPs)"
            )
        return steps


def resolve(config: ConfigDict) -> RunConfig:
    """Checks a config tree and builds the RunConfig; raises as `resolve_json` does."""
    return resolve_json(to_json(config))


def resolve_json(tree: Mapping[str, Any]) -> RunConfig:
    """The RunConfig of a tree of JSON values, such as config.json holds.

    Raises:
      UserError: a key is missing, unknown, of the wrong kind, or does not fit the others.
    """
    try:
        model = ModelConfig.from_tree(tree.get("model", {}))
        optimizer = _optimizer(tree.get("optimizer", {}))
        depth = _depth(tree.get("depth", {}), model)
        made = {"model": model, "optimizer": optimizer, "depth": depth}
        run = from_tree(RunConfig, {**tree, **made}, "config")
    except ValueError as error:
        raise UserError(str(error)) from error
    _check_budget(run.budget)
    _check_fit(run)
    return run


def to_json(config: ConfigDict) -> dict[str, Any]:
    """The whole tree as JSON values: what config.json holds."""
    return json.loads(config.to_json())


def _optimizer(tree: Mapping[str, Any]) -> MuonHConfig | AdamWConfig:
    kinds = {"muonh_adamw": MuonHConfig, "adamw": AdamWConfig}
    kind = tree.get("kind")
    if kind not in kinds:
        raise UserError(f"optimizer.kind = {kind!r}; allowed: {', '.join(map(repr, kinds))}")
    return from_tree(kinds[kind], tree, "optimizer")


def _depth(tree: Mapping[str, Any], model: ModelConfig) -> DepthConfig:
    if tree.get("kind") == "fixed":
        r = model.recurrences
        fixed = {"per": "step", "mean": float(r), "sigma": 0.0, "minimum": r, "maximum": r}
        return from_tree(DepthConfig, {**fixed, **tree}, "depth")
    return from_tree(DepthConfig, tree, "depth")


def _check_budget(budget: BudgetConfig) -> None:
    given = {key: value for key, value in dataclasses.asdict(budget).items() if value}
    if len(given) != 1:
        named = ", ".join(f"budget.{key} = {value}" for key, value in given.items()) or "no budget"
        raise UserError(
            f"{named} given; allowed: exactly one of budget.steps, .tokens, .flops, the others 0"
        )


def _check_fit(run: RunConfig) -> None:
    """What holds between sections."""
    model, loss = run.model, run.loss
    if run.data.sequence_length > model.max_length:
        raise UserError(
            f"data.sequence_length = {run.data.sequence_length}; allowed: up to "
            f"model.max_length = {model.max_length}"
        )
    if run.depth.maximum > model.max_recurrences:
        raise UserError(
            f"depth.maximum = {run.depth.maximum}; allowed: up to model.max_recurrences = "
            f"{model.max_recurrences}"
        )
    sampled = run.depth.kind != "fixed"
    if sampled and model.injection == "hyperconnect":
        raise UserError(
            f"depth.kind = {run.depth.kind!r}; allowed with hyperconnections: 'fixed' "
            "(each recurrence has lane parameters of its own)"
        )
    if loss.supervision != "last" or loss.norm_penalty:
        if sampled:
            raise UserError(
                f"depth.kind = {run.depth.kind!r}; allowed with a loss at every loop or a norm "
                "penalty: 'fixed'"
            )
        if model.backprop_recurrences:
            raise UserError(
                f"model.backprop_recurrences = {model.backprop_recurrences}; allowed with a loss "
                "at every loop or a norm penalty: 0 (all)"
            )
    if loss.supervision == "last" and loss.loop_weights:
        raise UserError(
            f"loss.loop_weights = {loss.loop_weights}; allowed with loss.supervision 'last': ()"
        )
    if loss.loop_weights and len(loss.loop_weights) != model.recurrences:
        raise UserError(
            f"loss.loop_weights has {len(loss.loop_weights)} entries; allowed: () for equal "
            f"weights, or model.recurrences = {model.recurrences} of them"
        )
    if loss.loop_weights and not sum(loss.loop_weights) > 0:
        raise UserError(f"loss.loop_weights = {loss.loop_weights}; allowed: at least one above 0")
    last = run.profile.steps[-1:]
    if last and last[0] > run.steps:
        raise UserError(f"profile.steps = {run.profile.steps}; allowed: up to step {run.steps}")
