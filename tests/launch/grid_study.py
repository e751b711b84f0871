"""The smallest grid that the joint law can be fitted to: 2 recurrences, 2 budgets, 3 widths."""

from ml_collections import ConfigDict

from configs import base


def get_runs() -> list[ConfigDict]:
    return [run(r, flops, width) for r in (1, 2) for flops in (2e9, 8e9) for width in (8, 16, 24)]


def run(r: int, flops: float, width: int) -> ConfigDict:
    c = base.get_config()
    c.name, c.study = f"r{r}_d{width}_{flops:.0e}".replace("+", ""), "grid"
    c.data.folder = "data/novels_512"
    c.data.sequence_length, c.data.batch_size = 32, 4
    c.budget.tokens, c.budget.flops = 0.0, flops
    c.model = base.isodepth_model(
        vocab_size=512, width=width, head_dim=8, effective_layers=4, ends=1, recurrences=r,
        max_length=32,
    )  # fmt: skip
    c.optimizer = base.muonh_adamw(d_ref=16, batch_ref=128, tokens_ref=1e5)
    c.evaluation.max_windows = 64
    return c
