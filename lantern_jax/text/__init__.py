"""From prompts to what targets are conditioned on: tokenizers, vocabularies, caption cleaning, the T5 encoder."""
