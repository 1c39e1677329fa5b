"""A foreign transformer as a target, and ``check_target``, which names an adapter's mistake."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lantern_jax
from lantern_jax import TokenConditioning, check_target, target_from_apply
from lantern_jax.draftings import drafter_from_target
from tests.cases import exhaustive, slow
from tests.decoding import toy_models as toys

CODES, WORDS, WIDTH, HEADS, LENGTH = 24, 6, 16, 2, 20
FIRST_CODE, NULL = WORDS, 0


@cache
def foreign_params(layers: int = 1):
    """Makes the parameters of a GPT with learned positions, whose codes follow its words."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(random.normal(0, 0.7, shape), jnp.float32)

    blocks = [{"qkv": normal(WIDTH, 3 * WIDTH), "up": normal(WIDTH, WIDTH)} for _ in range(layers)]
    return {"embed": normal(WORDS + CODES, WIDTH), "place": normal(LENGTH + 8, WIDTH), "blocks": blocks}


def foreign_model(params, tokens, positions, mask, past):
    """Runs the foreign model; keys and values of the past, [B, S, H, E] each, come first."""
    x = params["embed"][tokens] + params["place"][positions]
    made = []
    for number, block in enumerate(params["blocks"]):
        heads = (jnp.tanh(x) @ block["qkv"]).reshape(*x.shape[:2], HEADS, -1)
        query, keys, values = jnp.split(heads, 3, axis=-1)
        made.append((keys, values))
        if past is not None:
            keys, values = (
                jnp.concatenate(pair, axis=1) for pair in zip(past[number], made[-1], strict=True)
            )
        scores = jnp.einsum("bnhe,bshe->bhns", query, keys) / np.sqrt(np.float32(WIDTH // HEADS))
        weights = jax.nn.softmax(jnp.where(mask[:, None], scores, np.float32(-1e9)), axis=-1)
        x = x + jnp.einsum("bhns,bshe->bnhe", weights, values).reshape(x.shape)
        x = x + jnp.tanh(x @ block["up"])
    return x @ params["embed"].T, x, made


SIZES = {"num_codes": CODES, "num_tokens": LENGTH, "first_code": FIRST_CODE}


def applied(model):
    """Turns a model into a target: this is all it takes."""
    return target_from_apply(model, **SIZES, unconditional=NULL)


foreign_target = applied(foreign_model)
PROMPTS = TokenConditioning(
    jnp.array([[0, 3, 1], [2, 5, 4], [0, 0, 3]], jnp.int32),
    jnp.array([[False, True, True], [True, True, True], [False, False, True]]),
)
KEYS = jax.random.split(jax.random.key(3), 3)
GUIDANCE = jnp.full(3, 2.0)


def test_it_samples_what_the_model_says():
    """Greedy decoding equals one run over the whole sequence, without cache and padding."""
    greedy = lantern_jax.SamplingParams.create(temperature=0)
    made = lantern_jax.autoregressive_decode(
        foreign_target, foreign_params(), PROMPTS, KEYS, guidance=GUIDANCE, sampling=greedy
    )
    whole, chosen = jax.jit(foreign_model), np.asarray(made.tokens)
    prompts, valid = np.asarray(PROMPTS.tokens), np.asarray(PROMPTS.mask)
    for row in range(3):
        prompt, logits = prompts[row][valid[row]], []
        for words in (prompt, np.full_like(prompt, NULL)):
            tokens = np.concatenate([words, chosen[row, :-1] + np.int32(FIRST_CODE)])[None]
            places = np.arange(tokens.shape[1], dtype=np.int32)[None]
            mask = np.tril(np.ones((1, *tokens.shape[1:] * 2), bool))
            found, *_ = whole(foreign_params(), tokens, places, mask, None)
            logits.append(np.asarray(found)[0, len(words) - 1 :, FIRST_CODE:])
        conditional, unconditional = logits
        guided = unconditional + np.float32(2) * (conditional - unconditional)
        np.testing.assert_array_equal(np.argmax(guided, axis=-1), chosen[row])


def test_strict_decoding_with_a_smaller_model_is_plain_decoding():
    """The smaller one has an empty layer. Were padding hidden from it, it would not even guess its own tokens."""
    large = foreign_params(layers=2)
    given = (foreign_target, large, PROMPTS, KEYS)
    plain = lantern_jax.autoregressive_decode(*given, guidance=GUIDANCE)
    drafting = lantern_jax.draftings.eagle(
        drafter_from_target(foreign_target), lantern_jax.DraftTree.chain(3)
    )
    small = large | {"blocks": [large["blocks"][0], jax.tree.map(jnp.zeros_like, large["blocks"][1])]}
    for params, most in ((small, LENGTH - 2), (large, -(-(LENGTH - 1) // 4))):
        made = lantern_jax.speculative_decode(
            *given, guidance=GUIDANCE, drafting=drafting, drafting_params=params
        )
        np.testing.assert_array_equal(made.tokens, plain.tokens)
        assert int(made.rounds.max()) <= most


def test_without_unconditional_rows_guidance_is_refused():
    target = target_from_apply(foreign_model, **SIZES)
    with pytest.raises(ValueError, match="this target has no unconditional rows"):
        lantern_jax.autoregressive_decode(target, foreign_params(), PROMPTS, KEYS, guidance=GUIDANCE)


def no_features(*given):
    logits, _, made = foreign_model(*given)
    return logits, None, made


def some_codes(*given):
    logits, *more = foreign_target.score(*given)
    return jnp.where(jnp.arange(CODES) % 2 == 0, logits, -jnp.inf), *more


FORCED = (-1, -1, -1, -1, 2) * (LENGTH // 5)
# Disallowed ids are not a fault.
GOOD = {
    "applied": lambda: (foreign_target, foreign_params(), PROMPTS),
    "no features, forced tokens": lambda: (
        target_from_apply(no_features, **SIZES, unconditional=NULL, forced_tokens=FORCED),
        foreign_params(),
        PROMPTS,
    ),
    "some codes": lambda: (
        replace(foreign_target, score=some_codes, first_code=None),
        foreign_params(),
        PROMPTS,
    ),
    "no position too many": lambda: (applied(few_positions(LAST + 1)), foreign_params(), PROMPTS),
    "lumina": lambda: toys.lumina(3),
}


@pytest.mark.parametrize(
    "name",
    ["applied", *(slow(name) for name in GOOD if name not in ("applied", "lumina")), exhaustive("lumina")],
)
def test_good_targets_pass(name):
    assert check_target(*GOOD[name](), guidance=None if name == "some codes" else 2.0) < 1e-3


def sees_the_whole_block(params, tokens, positions, mask, past):
    new = tokens.shape[1]
    causal = jnp.broadcast_to(jnp.tril(jnp.ones((new, new), bool))[None], (len(tokens), new, new))
    return foreign_model(params, tokens, positions, mask.at[:, :, -new:].set(causal), past)


def counts_places(params, tokens, positions, mask, past):
    places = positions[:, :1] + jnp.arange(tokens.shape[1])[None]
    return foreign_model(params, tokens, places, mask, past)


def changed(part, change):
    """Returns the record with one part that gets changed arguments."""
    original = getattr(foreign_target, part)
    return replace(foreign_target, **{part: lambda *given: original(*change(*given))})


def mixes_sequences(*given):
    logits, features, block = foreign_target.score(*given)
    return logits + 0.1 * logits[::-1], features, block


def joins_the_batch(*given):
    """Leaks a little of each row into the next, conditional and unconditional ones alike."""
    logits, *more = foreign_model(*given)
    return logits + np.float32(0.1) * jnp.roll(logits, 1, axis=0), *more


def new_before_past(params, tokens, positions, mask, past):
    """Acts like a model that puts its new keys first, while the mask's columns begin with the past's."""
    if past is None:
        return foreign_model(params, tokens, positions, mask, None)
    new = tokens.shape[1]
    turned = jnp.concatenate([mask[..., new:], mask[..., :new]], axis=-1)
    return foreign_model(params, tokens, positions, turned, past)


def numbers_lost(part):
    """Returns the record with NaN in some logits of a part, or in the rows that commit writes."""

    def wrong(*given):
        if part == "commit":
            cache, block, *where = given
            return foreign_target.commit(cache, jax.tree.map(lambda leaf: leaf * np.nan, block), *where)
        made, place = list(getattr(foreign_target, part)(*given)), part == "prefill"
        made[place] = jnp.where(jnp.arange(CODES) < 1, np.float32(np.nan), made[place])
        return tuple(made)

    return replace(foreign_target, **{part: wrong})


def table_ends(codes, words):
    """Returns a target in which ids past ``codes`` codes, or ``words`` words, read the last row."""

    def clamped(params, tokens, *more):
        ends = jnp.where(tokens < WORDS, words - 1, WORDS + codes - 1)
        return foreign_model(params, jnp.minimum(tokens, ends), *more)

    return applied(clamped)


def few_positions(count):
    """Returns a model with a row for the first ``count`` positions, which reads the last row for others."""
    return lambda params, tokens, positions, *more: foreign_model(
        params, tokens, jnp.minimum(positions, count - 1), *more
    )


# The last position that is decoded: the last token of a picture is not read.
LAST = PROMPTS.tokens.shape[1] + LENGTH - 2


def few_slots(slots):
    """Returns a target with a cache of its own size, where JAX shifts an update to where it fits."""

    def prefill(params, conditioning, guidance, _):
        return foreign_target.prefill(params, conditioning, guidance, slots)

    def commit(cache, block, path, count):
        which, start = jnp.arange(len(path))[:, None], cache.prefix_mask.shape[2] + cache.length

        def append(slots, rows):
            write = jax.vmap(lambda old, new, at: jax.lax.dynamic_update_slice_in_dim(old, new, at, 0))
            return jax.vmap(write, (0, 0, None))(slots, rows[:, which, path], start)

        return cache.replace(past=jax.tree.map(append, cache.past, block), length=cache.length + count)

    return replace(foreign_target, prefill=prefill, commit=commit)


def counts_on(params, tokens, positions, mask, past):
    return foreign_model(params, tokens, positions + np.int32(past is not None), mask, past)


BROKEN = {
    "prefill leads to logits": lambda: numbers_lost("prefill"),
    "score leads to logits": lambda: numbers_lost("score"),
    "commit leads to logits": lambda: numbers_lost("commit"),
    "score: codes 22 and 23 are the same": lambda: table_ends(codes=CODES - 1, words=WORDS),
    "prefill: ids 4 and 5 of prompts are the same": lambda: table_ends(codes=CODES, words=WORDS - 1),
    "commit: a cache holds as many": lambda: few_slots(LENGTH // 2),
    "commit: rows past `count` lie in slots": lambda: few_slots(LENGTH),
    "score: the last positions of 20 tokens are the same": lambda: applied(few_positions(LAST)),
    "score: codes behind a prompt": lambda: applied(counts_on),
    "score: codes behind a prompt are": lambda: changed(
        "score", lambda params, cache, tokens, *more: (params, cache, tokens - FIRST_CODE, *more)
    ),
    "score: a node sees itself and its ancestors": lambda: applied(sees_the_whole_block),
    "score: .* keys and values of the past come before the block's": lambda: applied(new_before_past),
    "prefill: sequences of a batch": lambda: applied(joins_the_batch),
    "score: the order of a block's nodes": lambda: applied(counts_places),
    "score: a node at depth d": lambda: changed(
        "score", lambda params, cache, tokens, depth, *more: (params, cache, tokens, jnp.zeros_like(depth), *more)
    ),
    "score: sequences of a batch": lambda: replace(foreign_target, score=mixes_sequences),
    "commit: the appended rows are": lambda: changed("commit", lambda cache, block, path, count: (
        cache, block, jnp.broadcast_to(jnp.arange(path.shape[1])[None], path.shape), count
    )),
    "commit: each sequence takes its own": lambda: changed("commit", lambda cache, block, path, count: (
        cache, block, path, jnp.full_like(count, path.shape[1])
    )),
    "commit: what was committed is seen": lambda: changed(
        "commit", lambda cache, block, *more: (cache, jax.tree.map(jnp.zeros_like, block), *more)
    ),
    "prefill: with a guidance of 1": lambda: changed("prefill", lambda params, prompts, guidance, slots: (
        params, prompts, None if guidance is None else 2 * guidance, slots
    )),
}  # fmt: skip


# One of each part for quick runs.
QUICK = (
    "prefill leads",
    "score leads",
    "commit leads",
    "prefill: seq",
    "score: a node sees",
    "commit: the app",
)


@pytest.mark.parametrize("said", [said if said.startswith(QUICK) else slow(said) for said in BROKEN])
def test_broken_targets_are_found_out(said):
    with pytest.raises(ValueError, match=rf"^target\.{said}"):
        # Guidance would double the programs.
        guidance = 2.0 if said.startswith("prefill: ") else None
        check_target(BROKEN[said](), foreign_params(), PROMPTS, guidance=guidance)


def test_no_position_is_past_the_pictures_end():
    """A table that ends there has no row for guesses beyond, and NaN spoils what is next to it."""
    most = PROMPTS.tokens.shape[1] + LENGTH - 1

    def ends(params, tokens, positions, *more):
        place = jnp.where(jnp.arange(len(params["place"]))[:, None] < most, params["place"], jnp.nan)
        return foreign_model({**params, "place": place}, tokens, positions, *more)

    made = lantern_jax.speculative_decode(
        applied(ends), foreign_params(), PROMPTS, KEYS, drafting=lantern_jax.draftings.jacobi(CODES, 4)
    )
    assert made.finite.all()


def test_the_id_of_code_0_is_not_guessed():
    target = target_from_apply(foreign_model, num_codes=CODES, num_tokens=LENGTH)
    with pytest.raises(ValueError, match="30 logits for 24 codes: give code 0's id as first_code"):
        lantern_jax.autoregressive_decode(target, foreign_params(), PROMPTS, KEYS)
    for wrong in ({"first_code": WORDS + 1}, {"unconditional": 30}, {"unconditional": -1}):
        with pytest.raises(ValueError, match="give 0 to 29"):
            target_from_apply(foreign_model, vocab_size=WORDS + CODES, **SIZES | wrong)


def test_too_little_to_try_is_refused():
    one = jax.tree.map(lambda leaf: leaf[:1], PROMPTS)
    with pytest.raises(ValueError, match="give at least two"):
        check_target(foreign_target, foreign_params(), one)
    short = target_from_apply(foreign_model, num_codes=CODES, num_tokens=8)
    with pytest.raises(ValueError, match="8 tokens is too short"):
        check_target(short, foreign_params(), PROMPTS)
    with pytest.raises(ValueError, match=r"conditioning\[0\]\[0\] has shape \(\): give conditional rows"):
        check_target(foreign_target, foreign_params(), PROMPTS.tokens.tolist())
    with pytest.raises(
        ValueError, match=r"params\['act'\] is custom_jvp, no array: partition the model first"
    ):
        check_target(foreign_target, foreign_params() | {"act": jax.nn.relu}, PROMPTS)
