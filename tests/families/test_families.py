"""What model families provide."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import lantern_jax
from lantern_jax.apps.metrics.landscapes import LANDSCAPES
from lantern_jax.decoding.choices import DRAFTINGS
from lantern_jax.drafters.eagle_weights import drafter_table
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.registry import FAMILIES, family_of
from lantern_jax.families.token_weights import language_names, published_table
from tests.fixtures import guided_layouts as guided
from tests.fixtures import published_layouts as layouts
from tests.fixtures import published_shapes
from tests.tiny_checkpoint import TARGET, target_parameters


def test_the_published_residual_depends_on_the_model():
    assert family_of(TARGET).published_residual(TARGET) == "published"
    for layout, name in (("anole", "published"), ("lumina", "published_lumina")):
        config = ChameleonConfig(layout=layout)
        assert family_of(config).published_residual(config) == name


def test_a_familys_head_turns_features_into_logits():
    family, params = family_of(TARGET), target_parameters()
    record = family.target(TARGET, np.dtype(np.float32))
    labels = np.array([LANDSCAPES.null_labels()] * 2)
    prefill = jax.jit(record.prefill, static_argnums=3)
    _, logits, prefix = prefill(params, labels, None, 1)
    np.testing.assert_allclose(prefix.features[0, :, -1] @ family.head(params), logits, rtol=1e-4, atol=1e-4)


def test_a_text_tokenizer_is_needed_where_ids_are_reordered():
    assert family_of(TARGET).published_order(TARGET, None) is None
    with pytest.raises(ValueError, match="no text tokenizer"):
        family_of(ChameleonConfig()).published_order(ChameleonConfig(), None)


@pytest.mark.parametrize("config", [guided.TINY_EMU3, guided.TINY_LIQUID, guided.TINY_LUMINA2])
def test_a_published_drafters_rows_are_put_in_its_targets_order(config):
    """Codes have the first ids here, but other ids as published."""
    name, order = "embed_tokens.weight", family_of(config).published_order(config, None)
    ours = published_table(language_names(""), config)[name]
    theirs = drafter_table(DRAFTERS["eagle"].usual(config), order)[name]
    target, drafter = (entry.transform(np.arange(config.vocab_size)) for entry in (ours, theirs))
    np.testing.assert_array_equal(drafter, target)
    assert target[0] == config.text_size


def test_full_sizes_are_the_published_ones():
    """Chameleon-7B with its picture encoder left out, its drafter's norms, and Flan-T5-XL's encoder and table."""
    shapes = published_shapes.chameleon_shapes(ChameleonConfig(), published_shapes.CHAMELEON_VQ)
    own = [math.prod(shape) for name, shape in shapes.items() if not name.startswith("model.vqmodel.")]
    assert round(sum(own) / 1e7) == 701
    config = dataclasses.replace(layouts.drafter_of(ChameleonConfig()), vocab_size=10)
    assert published_shapes.drafter_shapes(config)["layers.0.self_attn.q_norm.weight"] == (32, 128)
    sizes = [math.prod(shape) for shape in published_shapes.t5_shapes(layouts.T5_XL, decoder=False).values()]
    assert sum(sizes) == 1_223_527_424


def test_no_other_code_asks_for_a_family_or_a_kind():
    """Neither by the class of a config nor by a name; each converter belongs to one family."""
    classes = "|".join(kind.config.__name__ for kind in (*FAMILIES.values(), *DRAFTERS.values()))
    names = "|".join((*FAMILIES, *DRAFTERS, *DRAFTINGS))
    asking = rf"isinstance\([^)]*({classes})|(==|!=| in) \(?\"({names})\""
    root = Path(lantern_jax.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(asking, path.read_text())
    }
    own = {path for path in found if re.match(r"families/\w+/|drafters/\w+_weights", path)}
    # A source is called "drafter" as long as there is one kind; windows are chosen and tuned by their methods' names.
    asks = {"apps/convert/convert.py", "apps/commands/info.py", "apps/measuring/tune.py"}
    assert found - own <= asks
    assert re.search(asking, 'if kind == "jacobi":')
