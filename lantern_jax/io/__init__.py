"""Files, locks, signals, streams and errors: what every other room stands on, and what knows nothing of models."""
