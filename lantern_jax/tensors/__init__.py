"""Reading files of tensors that others wrote, and matching their names with a model's."""
