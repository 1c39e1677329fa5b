"""Converting published weights into checkpoints."""
