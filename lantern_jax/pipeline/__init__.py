"""From prompts to pictures."""
