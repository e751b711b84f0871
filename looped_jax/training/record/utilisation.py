"""How well devices are used: FLOP/s against their peak, and the most memory that was in use."""

import jax

# Dense bfloat16 FLOP/s of one device, from the vendors' data sheets, by what the names of its kind
# begin with. A device that is not here has no known peak.
PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(device_kind: str) -> float | None:
    """Dense bfloat16 FLOP/s of a device; None where the table does not have it."""
    known = [kind for kind in PEAK_FLOPS if f"{device_kind} ".startswith((f"{kind} ", f"{kind}-"))]
    return PEAK_FLOPS[max(known, key=len)] if known else None


def utilisation(flops_per_second: float, device_kind: str, devices: int) -> dict[str, float]:
    """{"flops_per_second"} of all devices and, where their peak is known, {"share_of_peak"}."""
    peak = peak_flops(device_kind)
    share = {} if peak is None else {"share_of_peak": flops_per_second / (devices * peak)}
    return {"flops_per_second": flops_per_second} | share


def device_memory() -> dict[str, float]:
    """{"peak_memory_bytes"} of the fullest device of this process; {} where devices do not tell."""
    used = [
        stats["peak_bytes_in_use"]
        for device in jax.local_devices()
        if (stats := device.memory_stats()) and "peak_bytes_in_use" in stats
    ]
    return {"peak_memory_bytes": float(max(used))} if used else {}
