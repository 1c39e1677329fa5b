"""What absent devices' data sheets say beside their memory, and what their compilers are told about them.

All numbers are per device as JAX counts them (``data_sheets``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lantern_jax.apps.measuring.data_sheets import Device


@dataclass(frozen=True)
class Sheet:
    """A device's data sheet.

    Attributes:
        bandwidth: bytes per second.
        peak: operations per second of 16-bit matrix products, without sparsity.
        clock: cycles per second, of a GPU its boost.
        options: for a TPU, further arguments of ``topologies.get_topology_desc``.
        facts: for a GPU, its title, compute capability, and fields of its ``GpuTargetConfigProto``.
    """

    bandwidth: float
    peak: float
    clock: float
    options: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, float | str] = field(default_factory=dict)


def _gpu(title: str, capability: str, cores: int, units: int, shared: int, threads: int, cache: int) -> dict:
    """Returns a GPU's facts.

    Args:
        cores, units: streaming multiprocessors, and float32 units of each.
        shared: bytes of shared memory per core; a block gets 1 KiB less, on Turing all of it.
        threads: resident threads per core.
        cache: bytes of the second-level cache.
    """
    return {
        "title": title, "capability": capability, "core_count": cores, "fpus_per_core": units,
        "shared_memory_per_core": shared, "threads_per_core_limit": threads, "l2_cache_size": cache,
        "shared_memory_per_block_optin": shared - (0 if capability == "7.5" else 1024),
        "threads_per_block_limit": 1024, "threads_per_warp": 32, "shared_memory_per_block": 49152,
        "block_dim_limit_x": 2**31 - 1, "block_dim_limit_y": 65535, "block_dim_limit_z": 65535,
        "registers_per_core_limit": 65536, "registers_per_block_limit": 65536,
    }  # fmt: skip


# TPUs: cloud.google.com/tpu/docs, half a chip's for tpu7x. Clock: the peak divided by the matrix units' operations per
# cycle, with product and sum as one each: four units of 128 x 128 per core up to v5p, of 256 x 256 since. (By the
# compiler's own cycles, a product of 8192 squared gets 70 to 93 % of these.)
_V1, _V6 = 2 * 4 * 128 * 128, 2 * 4 * 256 * 256
_HOPPER = 132, 128, 233472, 2048, 50 << 20
# A100 80 GB, H100, H200, B200: openxla/xla, xla/backends/gpu/target_config/specs. T4, L4: NVIDIA's data sheets and the
# tables of compute capabilities 7.5 and 8.9 in the CUDA programming guide. Peaks: data sheets.
SHEETS = {
    "v4": Sheet(1.228e12, 275e12, 275e12 / (2 * _V1), {"chip_config_name": "megacore"}),
    "v5e": Sheet(8.19e11, 197e12, 197e12 / _V1),
    "v5p": Sheet(2.765e12, 459e12, 459e12 / (2 * _V1)),
    "v6e": Sheet(1.64e12, 918e12, 918e12 / _V6),
    "tpu7x": Sheet(3.69e12, 1153.5e12, 1153.5e12 / _V6),
    "t4": Sheet(3.2e11, 65e12, 1.59e9, facts=_gpu("Tesla T4", "7.5", 40, 64, 65536, 1024, 4 << 20)),
    "l4": Sheet(3e11, 121e12, 2.04e9, facts=_gpu("NVIDIA L4", "8.9", 58, 128, 102400, 1536, 48 << 20)),
    "a100": Sheet(
        2.03904e12, 312e12, 1.41e9, facts=_gpu("NVIDIA A100-SXM4-80GB", "8.0", 108, 64, 167936, 2048, 40 << 20)
    ),
    "h100": Sheet(3.35232e12, 989e12, 1.98e9, facts=_gpu("NVIDIA H100 80GB HBM3", "9.0", *_HOPPER)),
    "h200": Sheet(4.8e12, 989e12, 1.98e9, facts=_gpu("NVIDIA H200 141GB HBM3e", "9.0", *_HOPPER)),
    "b200": Sheet(
        7.67232e12, 2250e12, 1.965e9, facts=_gpu("NVIDIA B200", "10.0", 148, 128, 233472, 2048, 132644864)
    ),
}  # fmt: skip


def target_config(device: Device) -> str:
    """Returns a GPU's ``GpuTargetConfigProto`` as text."""
    sheet = SHEETS[device.name]
    facts = dict(sheet.facts)
    title, (major, minor) = facts.pop("title"), facts.pop("capability").split(".")
    facts |= {"memory_bandwidth": int(sheet.bandwidth), "clock_rate_ghz": sheet.clock / 1e9}
    facts |= {"device_memory_size": device.memory}
    fields = " ".join(f"{name}: {value}" for name, value in facts.items())
    extension = " feature_extension: ACCELERATED_FEATURES" if int(major) >= 9 else ""
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor}{extension} }}"
    version = "dnn_version_info { major: 9 minor: 10 patch: 0 }"
    info = f"gpu_device_info {{ {fields} {capability} }}"
    return f'{info} platform_name: "CUDA" {version} device_description_str: "{title}"'
