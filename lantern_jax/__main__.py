"""The ``lantern`` command, also as ``python -m lantern_jax``. Ctrl-C is heard before the rest is imported."""

from typing import NoReturn

from lantern_jax.io.interruption import listen
from lantern_jax.io.streams import settle


def main() -> NoReturn:
    """Runs the command and ends the process."""
    listen("lantern")
    settle()

    from lantern_jax.commands.command_line import leave
    from lantern_jax.commands.main import main as command

    leave(command())


if __name__ == "__main__":
    main()
