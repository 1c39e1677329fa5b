"""Training scripts, each run as ``python -m train.SCRIPT``: Ctrl-C is heard before JAX is imported, and missing
packages of the extra ``train`` are named.
"""

import importlib.util
import sys

from lantern_jax.io.interruption import listen_to_script

_NEEDED = ("ml_collections", "optax", "orbax")

listen_to_script()
if sys.argv[0] == "-m":  # Python looks for the script.
    _missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if _missing:
        _script = sys.orig_argv[-len(sys.argv)]
        _needs = (
            f'{_script}: error: training needs {" and ".join(_missing)}: pip install -e ".[train]" in a clone'
        )
        print(_needs, file=sys.stderr)
        sys.exit(2)
