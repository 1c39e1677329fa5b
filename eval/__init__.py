"""Evaluation scripts, each run as ``python -m eval.SCRIPT``: Ctrl-C is heard before JAX is imported."""

from lantern_jax.io.interruption import listen_to_script

listen_to_script()
