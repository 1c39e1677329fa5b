"""Model families: what differs from one to the next, and the names of its published tensors."""
