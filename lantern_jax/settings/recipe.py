"""What a model decodes with: from options to settings, and on to the values that a program is made from."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from lantern_jax.checkpoints.checkpoint import TOKENS_PER_PASS, Checkpoint
from lantern_jax.decoding.acceptance import NEIGHBOURS, Codebook, check_codebook, with_arrays
from lantern_jax.decoding.drafting.guessing import ModelParts
from lantern_jax.decoding.methods import Method
from lantern_jax.decoding.program import Program
from lantern_jax.decoding.protocols import Target
from lantern_jax.decoding.rules.own import try_rule
from lantern_jax.devices.partition import outside_mesh
from lantern_jax.drafters.registry import DRAFTERS
from lantern_jax.engine.jobs import Job
from lantern_jax.families.registry import TargetConfig, family_of
from lantern_jax.models.sizes import shape_of
from lantern_jax.settings import auto
from lantern_jax.settings.auto import Expected
from lantern_jax.settings.settings import Settings, resolve_settings


@dataclass(frozen=True)
class Recipe:
    """What a checkpoint, or a model with random weights, decodes with.

    Attributes:
        config: the target's config.
        drafters: configs of the drafters by kind.
        dtype: dtype of parameters and matrix products.
        defaults: the model's defaults, as in ``resolve_settings``.
        codebook: for relaxed rules: arrays or their shapes; None where there is none.
        tokens: the model's tokens per pass by method, as ``choose`` takes them.
    """

    config: TargetConfig
    drafters: Mapping[str, Any]
    dtype: np.dtype
    defaults: Mapping[str, Any] = field(default_factory=dict)
    codebook: Codebook | None = None
    tokens: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: Any) -> "Recipe":
        """Returns a checkpoint's recipe."""
        drafters = {kind: config for kind, (config, _) in checkpoint.drafters.items()}
        return cls(
            checkpoint.target_config, drafters, np.dtype(dtype), checkpoint.defaults, checkpoint.codebook,
            checkpoint.metadata.get(TOKENS_PER_PASS, {}),
        )  # fmt: skip

    def settings(self, options: Mapping[str, Any], platform: str | None = None) -> Settings:
        """Returns the settings that these options make with this model; ``platform`` None means this process's.

        Raises:
            LanternError: options that do not fit the model or each other.
        """
        made = resolve_settings(
            options, self.defaults, platform=platform or jax.default_backend(), vocab_size=self.config.num_codes,
            drafters=[kind for kind in DRAFTERS if kind in self.drafters],
        )  # fmt: skip
        return dataclasses.replace(made, method=self._checked(made.method))

    def _checked(self, method: Method) -> Method:
        """Returns a method with the family's own variant of the published residual, and no more neighbours by default
        than are stored."""
        coupling, rule = method.coupling, method.rule
        stored = NEIGHBOURS if self.codebook is None else self.codebook.neighbours.shape[1]
        if stored < rule.k == NEIGHBOURS:
            rule = rule.replace(k=stored)
        if getattr(coupling, "residual", "") == "published":
            coupling = dataclasses.replace(
                coupling, residual=family_of(self.config).published_residual(self.config)
            )
        if method.is_own:
            try_rule(with_arrays(rule), coupling, self.codebook, self.config.num_codes)
        check_codebook(rule, self.codebook, self.config.num_codes)
        return dataclasses.replace(method, rule=rule, coupling=coupling)

    def choice(
        self, settings: Settings, pictures: int, platform: str, groups: int
    ) -> tuple[Expected, list[Expected]]:
        """Returns what ``auto`` chooses, and from what (``choose``), for a call with these settings.

        Args:
            groups: of devices that share a batch.
        """
        # A CPU's devices share its cores.
        together = min(settings.batch, pictures) / (1 if platform == "cpu" else groups)
        sequences = math.ceil(together) * (1 if settings.guidance == 1 else 2)
        return auto.choose(platform, self.dtype.itemsize, sequences, self.tokens, bool(self.drafters))

    def target(self, drafter: str | None = None) -> Target:
        """Returns the target, with the features that a kind of drafter reads."""
        taps = getattr(self.drafters.get(drafter), "taps", ())
        return family_of(self.config).target(self.config, self.dtype, *((taps,) if taps else ()))

    @outside_mesh()
    def job(self, settings: Settings, plain: bool = False) -> Job:
        """Returns the job that decodes a batch with these settings; ``plain``: no drafts, the same distribution."""
        guidance, method = settings.guidance, settings.method
        sampling = settings.sampling(self.config.num_codes)
        if plain or settings.is_plain:
            # Nothing is drafted, so there is nothing to accept: all rules share one program.
            program = Program(self.target())
            return Job(program, guidance, sampling, made_from=(self._text(), program))
        name = method.drafting.drafter
        target = self.target(name)
        drafter = None if name is None else DRAFTERS[name].make(self.drafters[name], self.dtype)
        columns, preview_of = shape_of(self.config)[1], family_of(self.config).preview_of(self.config)
        parts = ModelParts(target, columns, drafter, method.coupling, preview_of)
        made = method.drafting.make(parts)
        if method.drafting.verifies:
            program = Program(target, made, method.coupling)
            accepts = with_arrays(method.rule), name, method.is_own
        else:
            program, accepts = Program(target, rows=made), ()
        made_from = None if method.is_own else (self._text(method), program)
        return Job(program, guidance, sampling, *accepts, made_from=made_from)

    def _text(self, method: Method | None = None) -> str:
        """Describes all that a program is made from; the rule is an argument of it."""
        parts = None if method is None else (method.drafting, method.coupling)
        return repr((self.config, self.drafters, self.dtype, parts))
