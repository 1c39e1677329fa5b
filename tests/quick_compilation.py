"""XLA flags of the tests and of the programs they start: tests compile much and run little."""

from importlib import metadata

# Machine code need not be optimised, nor split into parts to be made side by side: the tests already use every core.
# The HLO passes are not affected.
QUICK_COMPILATION = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# Options of a single compilation that give the HLO users get.
AS_USERS_COMPILE = {}

# The older emitters of fused loops compile in a third of the time. XLA aborts on a flag it does not know, and this
# one will not stay for ever.
if metadata.version("jaxlib").startswith("0.10."):
    QUICK_COMPILATION.append("--xla_cpu_use_fusion_emitters=false")
    AS_USERS_COMPILE["xla_cpu_use_fusion_emitters"] = True
