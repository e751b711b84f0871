"""What the suites of ``python -m looped_jax.evaluate`` leave in a run's summary.json.

The contract between the two packages, which share no code: a summary's parts are read by it, and
the tests of both sides hold what is written to it. Losses are in nats, FLOPs are forward and per
token unless they say otherwise; loops count from 1.
"""

from typing import Annotated, Any, Literal, TypedDict


class EstimateJson(TypedDict):
    """A number, its standard error and its 95 % interval over the resampled text."""

    value: float | None
    standard_error: float | None
    ci95: tuple[float | None, float | None]


#: One for each depth, each of the loops 2 … R, and each of the loops 1 … R.
Depths = Annotated[list[EstimateJson], "depths"]
Loops = Annotated[list[EstimateJson], "loops"]
UpToR = Annotated[list[EstimateJson], "R"]
UpToK = Annotated[list[EstimateJson], "K"]
FromZero = Annotated[list[EstimateJson], "R", 1]
Factors = Annotated[list[EstimateJson], "factors"]


class BootstrapJson(TypedDict):
    """What was resampled: ``units`` documents or windows."""

    unit: Literal["document", "window"]
    units: int
    resamples: int
    seed: int


class Training(TypedDict):
    """How the depth was drawn in training."""

    kind: str
    per: str
    mean: float
    sigma: float
    minimum: int
    maximum: int
    backprop_recurrences: int


class Loss(TypedDict):
    """Suite ``loss``; its part is the top of the summary itself."""

    loss: float
    loss_standard_error: float
    bits_per_byte: float
    validation_tokens: int


class AgainstMean(TypedDict):
    depth: int
    difference: Depths


class Saturation(TypedDict):
    share: float
    depth: EstimateJson
    over_training_mean: EstimateJson


class Depth(TypedDict):
    """Suite ``depth``."""

    training: Training
    tokens: int
    bootstrap: BootstrapJson
    depths: Annotated[list[int], "depths"]
    loss: Depths
    bits_per_byte: Annotated[list[float], "depths"]
    against_mean: AgainstMean
    best_depth: EstimateJson
    saturation: Saturation


class PerLoop(TypedDict):
    """Over tokens, at each of the loops 2 … R; quantiles by their level."""

    mean: Loops
    median: Loops
    quantiles: dict[str, Annotated[list[float], "loops"]]


class SettledTokens(TypedDict):
    """How many of these tokens settle at each of the loops 2 … R, and how many not within R."""

    tokens: int
    histogram: Annotated[list[int], "loops"]
    unsettled: int
    median: EstimateJson
    tail_at_mean: EstimateJson


class Settled(SettledTokens):
    """At one threshold on the KL divergence (nats): all tokens, and groups of them by name."""

    epsilon: float
    by_type: dict[str, SettledTokens]
    by_loss: dict[str, SettledTokens]
    by_position: dict[str, SettledTokens]
    by_frequency: dict[str, SettledTokens]


class Convergence(TypedDict):
    """Suite ``convergence``; its table has a row for each token."""

    training: Training
    recurrences: Annotated[int, "loops", 1]
    mean_depth: int
    tokens: int
    table: Literal["convergence.parquet"]
    bootstrap: BootstrapJson
    loops: Annotated[list[int], "loops"]
    kl: PerLoop
    relative_change: PerLoop
    angle: PerLoop
    argmax_changed: Loops
    settled: Annotated[list[Settled], "thresholds"]


class Costs(TypedDict):
    """FLOPs of the model's parts (one loop), and of one test by policy."""

    prelude: float
    recurrence: float
    readout: float
    tests: dict[str, float]


class ProbeQuality(TypedDict):
    examples: int
    share_changing: float
    scored_area_under_roc: float | None


class ExitPoint(TypedDict):
    """A policy at one threshold."""

    policy: str
    carry: str
    threshold: float
    mean_loops: EstimateJson
    loss: EstimateJson
    against_full_depth: EstimateJson
    agreement: EstimateJson
    flops_per_token: EstimateJson
    test_flops_per_token: float
    against_uniform_at_equal_loops: EstimateJson
    against_uniform_at_equal_flops: EstimateJson


class ExitsAtEqualQuality(TypedDict):
    policy: str
    carry: str
    loss: EstimateJson
    share_reached: float
    loops: EstimateJson
    loops_over_uniform: EstimateJson
    flops: EstimateJson
    flops_over_uniform: EstimateJson


class Exits(TypedDict):
    """Suite ``exits``; its table has a row for each point and window."""

    training: Training
    recurrences: int
    calibration_windows: tuple[int, int]
    scored_windows: tuple[int, int]
    tokens: int
    table: Literal["exits.parquet"]
    bootstrap: BootstrapJson
    policies: dict[str, str]
    carries: list[str]
    costs: Costs
    probe: ProbeQuality
    points: Annotated[list[ExitPoint], "points"]
    at_equal_quality: list[ExitsAtEqualQuality]


class ConditionJson(TypedDict):
    """What the loss of a run sees; the keys are those of its config."""

    supervision: str
    loop_weights: list[float]
    norm_penalty: float
    readout_norm: Literal["every", "last", "none"]
    state_norm: Literal["every", "between", "last", "none"]
    injection: str


class Norms(TypedDict):
    """Of ‖h_i‖ over tokens, i = 0 … R."""

    mean: FromZero
    median: FromZero
    p99: FromZero
    tail_index: FromZero


class Immediate(TypedDict):
    mean: UpToR
    pooled: UpToR


class Objective(TypedDict):
    mean: UpToK
    pooled: UpToK


class RadialFraction(TypedDict):
    immediate: Immediate
    objective: Objective


class Updates(TypedDict):
    """Parts of the updates i = 1 … R, and how well they predict angle and growth."""

    size: UpToR
    growth: UpToR
    radial: UpToR
    tangential: UpToR
    angle: UpToR
    predicted_angle: UpToR
    angle_error: UpToR
    growth_error: UpToR


class ScaleProbe(TypedDict):
    """The update of the trained depth's states at other scales."""

    factors: Annotated[list[float], "factors"]
    size: Factors
    radial: Factors
    tangential: Factors
    angle: Factors
    angle_slope: EstimateJson
    radial_ratio: Annotated[list[EstimateJson], "factors", -1]


class Clamp(TypedDict):
    loss: UpToR
    difference: UpToR


class Clamps(TypedDict):
    rescaled: Clamp
    tangential: Clamp


class Throughput(TypedDict):
    """Of the forward pass with each of 1 … R loops: median tokens per second, and quartiles."""

    batch: int
    length: int
    warm_ups: int
    repeats: int
    device: str
    depths: Annotated[list[int], "R"]
    tokens_per_second: Annotated[list[float], "R"]
    quartiles: tuple[Annotated[list[float], "R"], Annotated[list[float], "R"]]
    flops_per_token: Annotated[list[float], "R"]


class Readout(TypedDict):
    """Suite ``readout``; K loops were trained, R were run."""

    condition: ConditionJson
    seed: int
    trained_loops: Annotated[int, "K"]
    loops: Annotated[int, "R"]
    width: int
    tokens: int
    bootstrap: BootstrapJson
    norm: Norms
    radial_fraction: RadialFraction
    update: Updates
    probe: ScaleProbe
    loss: UpToR
    perplexity: UpToR
    bits_per_byte: Annotated[list[float], "R"]
    clamp: Clamps
    throughput: Throughput


#: The suites that have a part of their own, by its name.
SUITES: dict[str, Any] = {
    "depth": Depth,
    "convergence": Convergence,
    "exits": Exits,
    "readout": Readout,
}
