"""Which way of decoding is fastest for a checkpoint on this machine: measured, chosen, confirmed, kept."""
