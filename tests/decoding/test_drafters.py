"""A small model as a drafter."""

import jax
import jax.numpy as jnp
import numpy as np

from lantern_jax.draftings import drafter_from_target

from . import toy_models as toys


def test_a_small_models_pass_over_a_chain_equals_its_drafts_level_by_level():
    """Even if it knows of another node, which the chain does not see."""
    small, params, labels = toys.llamagen(), toys.target_params(), jnp.asarray([[1], [3]], jnp.int32)
    drafter, chain = drafter_from_target(small, lambda *_: labels), np.array([[5, 2, 7], [1, 1, 4]], np.int32)

    @jax.jit
    def both(params):
        _, _, prefix = small.prefill(params, labels, None, 8)
        state = drafter.init(params, prefix, 8, 1, 4)
        state, _ = drafter.absorb(params, state, None, chain[:, :1] + 1, np.ones(2, np.int32))
        begun, drafted = state, []
        for level in range(3):
            parents = np.full((2, 1), level, np.int32)
            state, logits = drafter.expand(params, state, chain[:, level : level + 1], parents)
            drafted.append(logits[:, 0])
        aside, _ = drafter.expand(params, begun, chain[:, 1:2], np.zeros((2, 1), np.int32))
        refined, _ = drafter.refine(params, aside, np.zeros(2, np.int32), chain, None, None)
        return jnp.stack(drafted, axis=1), refined

    drafted, refined = both(params)
    np.testing.assert_allclose(refined, drafted, atol=2e-5 * float(np.abs(drafted).max()))
    assert np.ptp(drafted, axis=1).max() > 0.1
