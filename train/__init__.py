"""Training scripts, each run as ``python -m train.SCRIPT``: Ctrl-C is handled before JAX is imported, and missing
packages of the extra ``train`` are named.
"""

import importlib.util
import sys

from lantern_jax.apps.terminal import streams
from lantern_jax.io.interruption import listen

_NEEDED = ("ml_collections", "optax", "orbax")

if sys.argv[0] == "-m":  # Python is still looking for the script; the command line ends with the same words.
    streams.settle()
    listen(sys.orig_argv[-len(sys.argv)])
    _missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if _missing:
        _script = sys.orig_argv[-len(sys.argv)]
        _needs = (
            f'{_script}: error: training needs {" and ".join(_missing)}: pip install -e ".[train]" in a clone'
        )
        print(_needs, file=sys.stderr)
        sys.exit(2)
