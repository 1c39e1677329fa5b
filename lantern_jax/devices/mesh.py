"""The sizes of a mesh of devices, as a text gives them; needs no JAX."""

from lantern_jax.io import errors

# Groups of devices that sequences are spread over, and the devices of a group that share one model.
AXES = ("data", "model")


def mesh_sizes(text: str) -> dict[str, int]:
    """Parses a text such as "data=2,model=4" into {"data": devices, "model": devices}; an axis left out has one.

    Raises:
        LanternError: any other text.
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        is_size = number.isdecimal() and len(number) < 10 and int(number) >= 1
        if name not in AXES or name in sizes or not sign or not is_size:
            raise errors.invalid("mesh", text, 'axes with their devices, such as "data=2,model=4"')
        sizes[name] = int(number)
    return {name: sizes.get(name, 1) for name in AXES}
