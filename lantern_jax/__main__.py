"""``python -m lantern_jax`` is the ``lantern`` command."""

import sys

from lantern_jax.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
