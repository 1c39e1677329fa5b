"""Files, locks, signals and errors: the room that all others stand on, and that knows nothing of models."""
