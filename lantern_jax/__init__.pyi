"""The public names: type checkers read them here, and ``__init__.py`` imports each from its module on first use."""
# ruff: noqa: I001

# From prompts to pictures
from lantern_jax.pipeline.pipeline import load as load
from lantern_jax.pipeline.pipeline import Pipeline as Pipeline
from lantern_jax.engine.generation import Generation as Generation
from lantern_jax.engine.generation import Picture as Picture
from lantern_jax.engine.generation import Progress as Progress
from lantern_jax.engine.generation import Statistics as Statistics
from lantern_jax.engine.generation import Interrupted as Interrupted
from lantern_jax.settings.settings import Options as Options
from lantern_jax.settings.settings import Settings as Settings
from lantern_jax.decoding.methods import METHODS as METHODS
from lantern_jax.decoding.methods import Method as Method
from lantern_jax.checkpoints.checkpoint import Checkpoint as Checkpoint
from lantern_jax.checkpoints.store import save as save
from lantern_jax.devices.compilation import keep_compiled_programs as keep_compiled_programs
from lantern_jax.pictures.images import grid as grid
from lantern_jax.pictures.images import side_by_side as side_by_side
from lantern_jax.apps.display.race import Race as Race
from lantern_jax.io.errors import LanternError as LanternError
from lantern_jax.io.errors import IgnoredWords as IgnoredWords

# Decoding with any JAX model
from lantern_jax.decoding.loop import speculative_decode as speculative_decode
from lantern_jax.decoding.loop import autoregressive_decode as autoregressive_decode
from lantern_jax.decoding.scoring import stream_log_probs as stream_log_probs
from lantern_jax.decoding.protocols import Target as Target
from lantern_jax.models.applied import target_from_apply as target_from_apply
from lantern_jax.apps.measuring.check_target import check_target as check_target
from lantern_jax.decoding.protocols import TokenConditioning as TokenConditioning
from lantern_jax.decoding.protocols import Prefix as Prefix
from lantern_jax.decoding.protocols import Draft as Draft
from lantern_jax.decoding.protocols import Drafting as Drafting
from lantern_jax.decoding.tree import DraftTree as DraftTree
from lantern_jax.decoding.tree import named_tree as named_tree
from lantern_jax.decoding.sampling import SamplingParams as SamplingParams
from lantern_jax.decoding.sampling import process_logits as process_logits
from lantern_jax.decoding.sampling import gumbel_noise as gumbel_noise
from lantern_jax.decoding.verification import verify_tree as verify_tree
from lantern_jax.decoding.acceptance import Codebook as Codebook
from lantern_jax.decoding.neighbours import nearest_codes as nearest_codes

# What a decoding is made of
from lantern_jax import couplings as couplings
from lantern_jax import draftings as draftings
from lantern_jax import rules as rules
