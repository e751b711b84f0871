"""RunConfig: everything a run is, checked and typed, from an ml_collections tree.

configs/base.py documents every key. Nothing here has a default: a key that is missing, unknown or
of the wrong kind is an error that names it.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from looped_jax.errors import UserError
from looped_jax.model import accounting
from looped_jax.model.config import ModelConfig, from_tree
from looped_jax.training.depth import DepthConfig
from looped_jax.training.transfer import Transfer

# Keys that may differ between the launches of one run: they change its numbers by the order of
# sums at most (with dropout, microbatches draw masks of their own).
MAY_CHANGE = (
    "checkpoint", "log", "mesh", "processes", "data.folder", "data.microbatches", "data.verify",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DataConfig:
    folder: str
    sequence_length: int
    batch_size: int
    microbatches: int
    verify: bool


@dataclasses.dataclass(frozen=True)
class BudgetConfig:
    """How long a run trains: exactly one of the three is above 0."""

    steps: int
    tokens: float
    flops: float


@dataclasses.dataclass(frozen=True)
class LossConfig:
    supervision: str
    loop_weights: tuple[float, ...]
    norm_penalty: float
    chunk: int


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
class MuonHConfig:
    kind: str
    momentum: float
    b1: float
    b2: float
    eps: float
    warmup_steps: int
    final_fraction: float
    rates: tuple[tuple[str, float], ...]
    transfer: Transfer

    @property
    def rule(self) -> MuonHRule:
        return MuonHRule(self.momentum, self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class AdamWConfig:
    kind: str
    b1: float
    b2: float
    eps: float
    rate: float
    decay: float
    decayed_groups: tuple[str, ...]
    clip_norm: float | None
    warmup_steps: int
    final_fraction: float

    @property
    def rule(self) -> AdamWRule:
        return AdamWRule(
            self.b1, self.b2, self.eps, self.decay, self.decayed_groups, self.clip_norm
        )


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    every_steps: int
    keep: int


@dataclasses.dataclass(frozen=True)
class LogConfig:
    every_steps: int


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    every_steps: int
    batch_size: int
    max_windows: int


@dataclasses.dataclass(frozen=True)
class ProcessesConfig:
    count: int
    connect_seconds: int


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A resolved run. `steps` is the budget in optimiser steps, whatever it was given in."""

    name: str
    study: str
    seed: int
    model: ModelConfig
    data: DataConfig
    budget: BudgetConfig
    depth: DepthConfig
    loss: LossConfig
    optimizer: MuonHConfig | AdamWConfig
    checkpoint: CheckpointConfig
    log: LogConfig
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
    tree = dict(tree)
    try:
        sections = {
            "model": ModelConfig.from_tree(tree.pop("model", {})),
            "data": _section(DataConfig, tree, "data"),
            "budget": _section(BudgetConfig, tree, "budget"),
            "loss": _section(LossConfig, tree, "loss"),
            "optimizer": _optimizer(tree.pop("optimizer", {})),
            "checkpoint": _section(CheckpointConfig, tree, "checkpoint"),
            "log": _section(LogConfig, tree, "log"),
            "evaluation": _section(EvaluationConfig, tree, "evaluation"),
            "processes": _section(ProcessesConfig, tree, "processes"),
        }
        sections["depth"] = _depth(tree.pop("depth", {}), sections["model"])
        run = from_tree(RunConfig, {**tree, **sections}, "config")
    except ValueError as error:
        raise UserError(str(error)) from error
    _check_budget(run.budget)
    _check_numbers(run)
    _check_fit(run)
    return run


def to_json(config: ConfigDict) -> dict[str, Any]:
    """The whole tree as JSON values: what config.json holds."""
    return json.loads(config.to_json())


def _section(cls: type, tree: dict[str, Any], name: str) -> Any:
    return from_tree(cls, tree.pop(name, {}), name)


def _optimizer(tree: Mapping[str, Any]) -> MuonHConfig | AdamWConfig:
    kind = tree.get("kind")
    if kind == "muonh_adamw":
        transfer = from_tree(Transfer, tree.get("transfer", {}), "optimizer.transfer")
        rates = tuple(sorted(tree.get("rates", {}).items()))
        return from_tree(MuonHConfig, {**tree, "transfer": transfer, "rates": rates}, "optimizer")
    if kind == "adamw":
        return from_tree(AdamWConfig, tree, "optimizer")
    raise UserError(f"optimizer.kind = {kind!r}; allowed: 'muonh_adamw', 'adamw'")


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
    key, value = given.popitem()
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"budget.{key} = {value}; allowed: above 0")


def _check_numbers(run: RunConfig) -> None:
    least = {
        "seed": (run.seed, 0),
        "data.sequence_length": (run.data.sequence_length, 1),
        "data.batch_size": (run.data.batch_size, 1),
        "data.microbatches": (run.data.microbatches, 1),
        "loss.chunk": (run.loss.chunk, 1),
        "loss.norm_penalty": (run.loss.norm_penalty, 0),
        "checkpoint.every_steps": (run.checkpoint.every_steps, 0),
        "checkpoint.keep": (run.checkpoint.keep, 1),
        "log.every_steps": (run.log.every_steps, 1),
        "evaluation.every_steps": (run.evaluation.every_steps, 0),
        "evaluation.batch_size": (run.evaluation.batch_size, 1),
        "evaluation.max_windows": (run.evaluation.max_windows, 0),
        "processes.count": (run.processes.count, 1),
        "processes.connect_seconds": (run.processes.connect_seconds, 1),
    }
    for key, (value, bound) in least.items():
        if not value >= bound:
            raise UserError(f"{key} = {value}; allowed: at least {bound}")


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
    if loss.supervision not in ("last", "every"):
        raise UserError(f"loss.supervision = {loss.supervision!r}; allowed: 'last', 'every'")
    if loss.supervision == "every" or loss.norm_penalty:
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
    weights = loss.loop_weights
    if weights and not (all(0 <= w < math.inf for w in weights) and sum(weights) > 0):
        raise UserError(f"loss.loop_weights = {weights}; allowed: 0 or more each, and one above 0")
    if math.isinf(loss.norm_penalty):
        raise UserError(f"loss.norm_penalty = {loss.norm_penalty}; allowed: a finite number")
