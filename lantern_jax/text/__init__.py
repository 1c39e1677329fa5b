"""Prompts to conditioning: tokenizers, vocabularies, caption cleaning, the T5 encoder."""
