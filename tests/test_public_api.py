"""The public names, and that importing the package is cheap."""

import subprocess
import sys

import pytest

import lantern_jax


def test_every_public_name_is_there():
    assert len(set(lantern_jax.__all__)) == len(lantern_jax.__all__)
    for name in lantern_jax.__all__:
        value = getattr(lantern_jax, name)
        assert value.__name__ == name or name in repr(value)
        assert value.__doc__, f"{name} has no docstring"
    assert set(lantern_jax.__all__) <= set(dir(lantern_jax))


def test_public_names_come_from_our_modules():
    for name in lantern_jax.__all__:
        assert getattr(lantern_jax, name).__module__.startswith("lantern_jax.")


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'oak'"):
        _ = lantern_jax.oak


def test_the_core_needs_no_optional_or_training_package():
    """What a picture needs imports neither the extras nor what only training uses."""
    code = (
        "import sys; import lantern_jax; assert 'jax' not in sys.modules; lantern_jax.load; import lantern_jax.cli;"
        "print([m for m in ('torch', 'safetensors', 'optax', 'matplotlib', 'pytest') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
