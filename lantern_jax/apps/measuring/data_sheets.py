"""The memory of devices that one may not have, each as JAX counts them: a chip; a tpu7x chip is two."""

from collections.abc import Mapping
from typing import NamedTuple

GIB = 2**30
TPU, GPU = "tpu", "cuda"


class Device(NamedTuple):
    """A kind of device: its name for ``--for``, its platform, and the bytes that programs may use."""

    name: str
    platform: str
    memory: int


# TPUs: what libtpu 0.0.42.1 says is available when it refuses a program. A100 80 GB and later: openxla/xla,
# xla/backends/gpu/target_config/specs; T4, L4: as CUDA reports it.
_TPUS = {"v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25, "tpu7x": 94.75}
_GPUS = {
    "t4": 15102 << 20, "l4": int(22.161 * GIB), "a100": 85100068864, "h100": 84942979072, "h200": 151397597184,
    "b200": 191514411008,
}  # fmt: skip
DEVICES: Mapping[str, Device] = {
    **{name: Device(name, TPU, int(memory * GIB)) for name, memory in _TPUS.items()},
    **{name: Device(name, GPU, memory) for name, memory in _GPUS.items()},
}
