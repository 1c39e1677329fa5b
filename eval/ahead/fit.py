"""What a batch needs on each device, by its compiler's own account.

Programs are compiled from shapes alone: no parameter is read and nothing runs.
"""

import jax

from eval.ahead.arguments import Batch
from eval.ahead.compiling import bytes_on_each, compile_batch
from lantern_jax.apps.measuring.fitting import Need
from lantern_jax.apps.measuring.shapes import size_of


def least_of(batch: Batch) -> Need:
    """Returns what a batch needs at least on each device, from its shapes: parameters and its share of the state."""
    target, drafting = batch.inputs.target_params, dict(batch.inputs.drafting_params or {})
    # The head that a drafter is given is the target's.
    drafting.pop("head", None)
    start = batch.start()
    _, state = jax.eval_shape(start.function, *start.arguments)
    share = size_of(state) // batch.devices.size
    return Need(batch.pictures, bytes_on_each((target, drafting)), share, 0)


def need_there(
    batch: Batch, platform: str | None, limit: int, kinds: tuple[str, ...], hasty: bool = False
) -> Need:
    """Returns what programs of a batch need on each device; the programs' code counts as parameters.

    Parameters and state are those that ``advance`` is given, and drawing adds its own parameters. The working memory of
    a program that was refused is what it asked for, or ``limit``.
    """
    parameters = state = working = 0
    for made in compile_batch(batch, kinds, platform, hasty):
        # Parameters that a program does not read still take up memory; tiles may be padded.
        arguments, own, asked = made.arguments, made.state, made.needed or limit
        if made.program is not None:
            used = made.program.memory_analysis()
            arguments = max(arguments, used.argument_size_in_bytes)
            own = used.alias_size_in_bytes or own
            parameters += used.generated_code_size_in_bytes
            # The first program creates the state.
            results = 0 if made.kind == "start" else used.output_size_in_bytes - own
            asked = used.temp_size_in_bytes + results
        if made.kind == "advance":
            # The head that a drafter is given is the target's.
            shared = bytes_on_each((batch.inputs.drafting_params or {}).get("head"))
            parameters, state = parameters + arguments - own - shared, own
        elif made.kind == "draw":
            parameters += arguments
        working = max(working, asked)
    return Need(batch.pictures, parameters, state, working)
