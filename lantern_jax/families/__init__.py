"""Model families: how they differ, and the names of their published tensors."""
