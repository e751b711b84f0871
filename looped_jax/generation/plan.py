"""What one call of the generator was turned into, and what is not allowed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from looped_jax.adaptive import memory
from looped_jax.adaptive.calibration import FILE, Calibration, rule_of
from looped_jax.adaptive.engine import prompts_together
from looped_jax.adaptive.rule import Rule, check_model
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.generation import caches
from looped_jax.model.config import ModelConfig

# Prompts and caches are padded to powers of two from here on, so that few shapes are compiled.
SMALLEST_BUCKET = 16
# The rule of slots that are given none: a distance is never negative, so all loops are run.
NEVER = Rule("change", -1.0)
# Slots of a call that does not say how many, if it has as many prompts.
DEFAULT_SLOTS = 32


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one call was turned into.

    Attributes:
      recurrences: r of every token; with a rule, the loop at which every token exits.
      prompts: token ids of each prompt.
      max_tokens: most new tokens of each row; fewer than asked for where the context ends.
      cache, kept: kind of cache and recurrences that it has room for.
      rows: of the cache: prompts, or slots with a rule.
      prompt_bucket, capacity: tokens that the prompts and the cache are padded to.
      rule: when tokens exit; None for r loops each, all rows in step.
      fitted: what the rule's signal was fitted with; None for most.
      equal_depth: the least depth for all tokens that loses no more than the rule on held-out text;
        None where the run's exits.json does not tell.
      boundary: slots that go through coda and head together; None to choose by measured times.
    """

    recurrences: int
    prompts: list[np.ndarray]
    max_tokens: list[int]
    cache: str
    kept: int
    rows: int
    prompt_bucket: int
    capacity: int
    rule: Rule | None = None
    fitted: Any = None
    equal_depth: int | None = None
    boundary: int | None = None


def make_plan(
    model: ModelConfig,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    recurrences: int | None = None,
    max_tokens: int = 100,
    cache: str = caches.KINDS[0],
    deepest: int | None = None,
    exit: Rule | str | None = None,
    slots: int | None = None,
    boundary: int | None = None,
    most: int | None = None,
    folder: Path | None = None,
) -> Plan:
    """Checks a call; arguments as of `Generator.stream`, `most` and `folder` as of `Generator`.

    Raises:
      UserError: an argument is not allowed, or a prompt is longer than the context.
    """
    rule, fitted = exit if isinstance(exit, Rule) else None, None
    if isinstance(exit, str):
        rule, fitted = (Rule.parse(exit), None) if folder is None else rule_of(exit, folder)
    if rule is None and slots is not None:
        rule = NEVER
    r = recurrences
    if r is None:
        r = model.recurrences if rule in (None, NEVER) or most is None else most
    _check_depth(model, r)
    if cache not in caches.KINDS:
        raise UserError(f"cache {cache!r}; allowed: {', '.join(caches.KINDS)}")
    kept = caches.count_kept(cache, r)
    if deepest is not None and (deepest < kept or cache != "every_recurrence"):
        raise UserError(
            f"deepest = {deepest}; allowed with every_recurrence: {r} recurrences or more"
        )
    if max_tokens < 1:
        raise UserError(f"max_tokens = {max_tokens}; allowed: 1 or more")
    if not prompts:
        raise UserError("no prompt was given; allowed: one or more")
    rows = len(prompts)
    if rule is not None:
        if SIGNALS[rule.signal].is_fitted and fitted is None:
            raise UserError(
                f"exit {str(rule)!r}: its signal is fitted on text; allowed: as text, of a run "
                "that the suite exits has measured"
            )
        rows = _check_slots(model, rule, r, len(prompts), slots, boundary)
    elif boundary is not None:
        raise UserError(f"boundary = {boundary} without slots; allowed: with slots or an exit")
    ids = [_encode(model, tokenizer, prompt) for prompt in prompts]
    context = model.max_length
    new = [min(max_tokens, context - len(row)) for row in ids]
    longest = max(len(row) for row in ids)
    filled = max(len(row) + n for row, n in zip(ids, new, strict=True))
    return Plan(
        recurrences=r if rule is None else rule.most or r,
        prompts=ids, max_tokens=new, cache=cache, kept=deepest or kept, rows=rows,
        prompt_bucket=_bucket(longest, context), capacity=_bucket(filled, context),
        rule=rule, fitted=fitted, equal_depth=_equal_depth(rule, folder), boundary=boundary,
    )  # fmt: skip


def _equal_depth(rule: Rule | None, folder: Path | None) -> int | None:
    if rule is None or folder is None or not (folder / FILE).exists():
        return None
    return Calibration.read(folder).uniform_depth_as_good_as(rule)


def signal_bytes(model: ModelConfig, plan: Plan) -> int:
    """What the rule's signal remembers of the prompts that are run together, or of the slots."""
    assert plan.rule is not None
    tokens = max(plan.rows, prompts_together(len(plan.prompts)) * plan.prompt_bucket)
    return memory.signal_bytes(model, plan.rule, tokens)


def _check_depth(model: ModelConfig, r: int) -> None:
    deepest = model.recurrences if model.injection == "hyperconnect" else None
    if r < 1 or (deepest and r > deepest):
        allowed = f"1 to {deepest} (rows of the lane table)" if deepest else "1 or more"
        raise UserError(f"recurrences = {r}; allowed: {allowed}")


def _check_slots(
    model: ModelConfig,
    rule: Rule,
    r: int,
    prompts: int,
    slots: int | None,
    boundary: int | None,
) -> int:
    """Rows of the cache."""
    check_model(model)
    if rule.share is not None:
        raise UserError(
            f"exit {str(rule)!r}: in slots tokens exit one by one; allowed: a rule without share"
        )
    if rule.most is not None and rule.most > r:
        raise UserError(f"most = {rule.most} recurrences; allowed: up to {r}, which slots hold")
    S = min(prompts, DEFAULT_SLOTS) if slots is None else slots
    if S < 1:
        raise UserError(f"slots = {S}; allowed: 1 or more")
    if boundary is not None and not 1 <= boundary <= S:
        raise UserError(f"slots = {S} with boundary {boundary}; allowed: 1 to slots")
    return S


def _encode(model: ModelConfig, tokenizer: Tokenizer, prompt: str) -> np.ndarray:
    if not prompt:
        return np.array([tokenizer.end_of_text_id], np.int32)
    ids, most = tokenizer.encode(prompt), model.max_length - 1
    start = prompt if len(prompt) <= 20 else f"{prompt[:20]}…"
    if not len(ids):
        raise UserError(f"prompt {start!r} has no tokens in this tokenizer")
    if len(ids) > most:
        raise UserError(
            f"prompt {start!r} has {len(ids)} tokens; allowed: up to {most} "
            f"(model.max_length = {model.max_length}, and one to generate)"
        )
    return ids


def _bucket(length: int, context: int) -> int:
    """The power of two that holds so many tokens; at most the context."""
    size = SMALLEST_BUCKET
    while size < length:
        size *= 2
    return min(size, context)
