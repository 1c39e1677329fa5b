"""Evaluation scripts, each run as ``python -m eval.SCRIPT``: Ctrl-C is handled before JAX is imported."""

import sys

from lantern_jax.apps.terminal import streams
from lantern_jax.io.interruption import listen

if sys.argv[0] == "-m":  # Python is still looking for the script; the command line ends with the same words.
    streams.settle()
    listen(sys.orig_argv[-len(sys.argv)])
