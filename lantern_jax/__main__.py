"""The ``lantern`` command, also as ``python -m lantern_jax``. Ctrl-C is heard before the rest is imported."""

import gc
from typing import NoReturn

from lantern_jax.apps.terminal.streams import settle
from lantern_jax.io.interruption import listen

# Objects after which Python looks for rings of garbage: importing and tracing make millions that stay, and looking
# through them as often as Python does by itself takes a tenth of a short command.
_OBJECTS = 200_000


def main() -> NoReturn:
    """Runs the command and ends the process."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    listen("lantern")
    settle()

    from lantern_jax.apps.commands.command_line import leave
    from lantern_jax.apps.commands.main import main as command

    leave(command())


if __name__ == "__main__":
    main()
