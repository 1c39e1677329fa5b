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

# Later
from lantern_jax.models.llamagen import CaptionConditioning as CaptionConditioning
from lantern_jax.models.chameleon import Chameleon as Chameleon
from lantern_jax.models.chameleon import ChameleonConfig as ChameleonConfig
from lantern_jax.text.chameleon import ChameleonVocabulary as ChameleonVocabulary
from lantern_jax.models.drafter import DrafterConfig as DrafterConfig
from lantern_jax.families.drafters import DrafterKind as DrafterKind
from lantern_jax.models.drafter import DrafterModel as DrafterModel
from lantern_jax.models.eagle3 import Eagle3Config as Eagle3Config
from lantern_jax.models.emu3 import Emu3Config as Emu3Config
from lantern_jax.text.encoded import EncodedPrompts as EncodedPrompts
from lantern_jax.families.registry import Family as Family
from lantern_jax.families.formats import File as File
from lantern_jax.families.formats import Format as Format
from lantern_jax.models.janus import JanusConfig as JanusConfig
from lantern_jax.models.liquid import LiquidConfig as LiquidConfig
from lantern_jax.models.llamagen import LlamaGen as LlamaGen
from lantern_jax.models.llamagen import LlamaGenConfig as LlamaGenConfig
from lantern_jax.models.lumina2 import Lumina2Config as Lumina2Config
from lantern_jax.models.medusa import MedusaConfig as MedusaConfig
from lantern_jax.models.parallel import ParallelConfig as ParallelConfig
from lantern_jax.apps.metrics.registry import ReaderKind as ReaderKind
from lantern_jax.apps.metrics.registry import ScoreKind as ScoreKind
from lantern_jax.models.t5 import T5Config as T5Config
from lantern_jax.models.t5 import T5Encoder as T5Encoder
from lantern_jax.models.vq import VQConfig as VQConfig
from lantern_jax.models.vq import VQModel as VQModel
from lantern_jax.text.vocabulary import Vocabulary as Vocabulary
from lantern_jax.io.plugins import at as at
from lantern_jax.models.chameleon import chameleon_target as chameleon_target
from lantern_jax.models.eagle3 import eagle3_drafter as eagle3_drafter
from lantern_jax.models.drafter import eagle_drafter as eagle_drafter
from lantern_jax.models.emu3 import emu3_target as emu3_target
from lantern_jax.models.janus import janus_target as janus_target
from lantern_jax.models.liquid import liquid_target as liquid_target
from lantern_jax.models.llamagen import llamagen_target as llamagen_target
from lantern_jax.text.encoded import load_encoded as load_encoded
from lantern_jax.models.lumina2 import lumina2_target as lumina2_target
from lantern_jax.models.medusa import medusa_drafter as medusa_drafter
from lantern_jax.models.parallel import parallel_drafter as parallel_drafter
from lantern_jax.models.llamagen import published_config as published_config
from lantern_jax.text.encoded import save_encoded as save_encoded
from lantern_jax.models.targets import transformer_target as transformer_target

# What a decoding is made of
from lantern_jax import couplings as couplings
from lantern_jax import draftings as draftings
from lantern_jax import rules as rules
