"""The result of a run: summary.json."""

from typing import Any

from looped_jax.config import RunConfig
from looped_jax.data.shards import TokenData
from looped_jax.model.accounting import count_parameters
from looped_jax.training.validation import ValidationLoss


def summarise(
    run: RunConfig,
    digest: str,
    data: TokenData,
    final: ValidationLoss,
    last_metrics: dict[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """summary.json: what analysis reads. FLOPs and N are the analytic counts of accounting.py."""
    n = count_parameters(run.model)
    tokens = run.steps * run.batch_tokens
    train_flops = run.flops_per_token * tokens
    return {
        "run": run.name,
        "study": run.study,
        "budget": run.budget.flops or train_flops,
        "r": run.model.recurrences,
        "d_model": run.model.width,
        "n_once": n.n_once,
        "n_rec": n.n_rec,
        "n_inject": n.n_inject,
        "n_total": n.total,
        "tokens": tokens,
        "steps": run.steps,
        "flops_per_token": run.flops_per_token,
        "train_flops": train_flops,
        "loss": final.loss,
        "loss_standard_error": final.standard_error,
        "bits_per_byte": final.bits_per_byte,
        "validation_tokens": final.tokens,
        "train_loss": last_metrics["loss"],
        "seed": run.seed,
        "injection": run.model.injection,
        "backprop_recurrences": run.model.backprop_recurrences,
        "sequence_length": run.data.sequence_length,
        "vocab_size": run.model.vocab_size,
        "batch_tokens": run.batch_tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "config_digest": digest,
        "data_digest": data.digest,
    }
