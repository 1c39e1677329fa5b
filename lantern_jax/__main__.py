"""The ``lantern`` command, also as ``python -m lantern_jax``. Ctrl-C is heard before the rest is imported."""

from typing import NoReturn

from lantern_jax.interruption import listen


def main() -> NoReturn:
    """Runs the command and ends the process."""
    listen("lantern")

    from lantern_jax.command_line import leave
    from lantern_jax.commands.main import main as command

    leave(command())


if __name__ == "__main__":
    main()
