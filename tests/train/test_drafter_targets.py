"""Drafters for published targets: training passes against drafting, losses with forced tokens, sizes, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from configs import anole_drafter, llamagen_c2i_drafter, llamagen_t2i_drafter, lumina_drafter
from lantern_jax.drafters.eagle import DrafterModel, eagle_drafter
from lantern_jax.families.chameleon.model import ChameleonConfig
from lantern_jax.families.llamagen.model import published_config
from lantern_jax.families.registry import family_of
from tests.fixtures import published_layouts as layouts
from tests.train.families import FLOAT32, config_of, target_drafter
from train import chains, drafter, target
from train.feature_store import FeatureStore

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytestmark = pytest.mark.slow


# test_kinds has the sequence with class labels.
def test_training_passes_match_drafting_below_a_root(extracted):
    model, workdir = extracted("lumina")
    checkpoint = target.read_target(model)
    sizes = target_drafter("lumina", checkpoint)
    params = jax.jit(drafter.make_task(config_of("lumina"), sizes).init)(jax.random.key(1)).params
    features_, prefix, tokens = (jnp.asarray(part) for part in FeatureStore(workdir).read([0, 3]))
    stored, prefix = (jnp.swapaxes(part, 0, 1) for part in (features_.astype(jnp.float32), prefix))
    twice = jnp.broadcast_to(tokens[None], (2, *tokens.shape))
    inputs, wanted = chains.drafter_inputs(stored, prefix, twice)
    made = jax.jit(chains.drafter_passes, static_argnums=(0, 3))(DrafterModel(sizes), params, inputs, 3)
    length = prefix.shape[-1]
    assert wanted.shape == stored[:, :, 1:].shape and inputs.first == length - 1

    record = eagle_drafter(sizes)
    both = {"drafter": {"params": params}, "head": drafter.read_head(checkpoint)}
    positions = jnp.zeros(prefix.shape, jnp.int32)
    rows = stored[:, :, :length], jnp.maximum(prefix, 0), prefix >= 0
    seen = lantern_jax.Prefix(*rows, positions, jnp.ones(2))
    state = record.init(both, seen, 16, 4, 3)
    root, absorb, expand = 3, jax.jit(record.absorb), jax.jit(record.expand)
    absorbed = stored[:, :, length - 1 : length + root]
    state, _ = absorb(both, state, absorbed, tokens[:, : root + 1], jnp.full(2, root + 1, jnp.int32))
    chain = [state.features[:, :, 0]]
    for depth in (1, 2):
        node = tokens[:, root + depth, None]
        state, _ = expand(both, state, node, jnp.full((2, 1), depth - 1))
        chain.append(state.features[:, :, depth])
    for depth, expected in enumerate(chain):
        np.testing.assert_allclose(made[depth][:, :, length - 1 + root + depth], expected, atol=2e-4)


def test_distribution_losses_count_only_where_the_next_token_is_sampled(extracted, monkeypatch):
    """Row ends and the image end are not drafted: a loss of 1 there and 0 elsewhere has mean 0, in the metrics too."""
    model, workdir = extracted("lumina")
    checkpoint, config = target.read_target(model), config_of("lumina")
    sizes, head = checkpoint.target_config, checkpoint.target_params["params"]["head"]["kernel"]
    task = drafter.make_task(config, target_drafter("lumina", checkpoint))
    stored, prefix, tokens = FeatureStore(workdir).read([0, 3])
    batch = {"features": jnp.asarray(stored), "prefix": jnp.asarray(prefix), "tokens": jnp.asarray(tokens)}
    free = family_of(sizes).target(sizes, FLOAT32).forced < 0
    model = DrafterModel(target_drafter("lumina", checkpoint))
    params = jax.jit(task.init)(jax.random.key(0)).params
    config.update({"token_weight": 0.0, "feature_weight": 0.0, "guided_weight": 1.0})

    def loss_of(marked):
        def distance(logits, wanted, _):
            # The root of depth d is at least token d, which is followed by token d + 1.
            return jnp.asarray(marked[-logits.shape[1] :], jnp.float32)[None] + 0 * logits[..., 0]

        def agreement(logits, wanted, counts):
            return {"top1": drafter.counted_mean(distance(logits, wanted, None), counts)}

        monkeypatch.setattr(drafter, "distribution_loss", lambda name: distance)
        monkeypatch.setattr(drafter, "agreement", agreement)
        given = params, jnp.asarray(head), batch, jax.random.key(0)
        loss, metrics = jax.jit(lambda *given: drafter.drafter_loss(model, *given, config, free))(*given)
        return [loss, *metrics.values()]

    np.testing.assert_allclose(loss_of(~free), 0, atol=1e-6)
    np.testing.assert_allclose(loss_of(free), 1, atol=1e-6)


@pytest.mark.parametrize(("config", "sizes"), [
    *((llamagen_c2i_drafter.get_config(size), published_config(size)) for size in ("B", "XL", "3B")),
    (llamagen_t2i_drafter.get_config(), published_config("XL", "caption", 32)),
    (anole_drafter.get_config(), ChameleonConfig()),
    (lumina_drafter.get_config(), ChameleonConfig(grid=48, layout="lumina")),
])  # fmt: skip
def test_full_size_drafters_are_one_layer_of_their_target(config, sizes):
    # Drafters trained here do not see padding.
    assert drafter.drafter_config(config, sizes) == dataclasses.replace(
        layouts.drafter_of(sizes), sees_padding=False
    )
