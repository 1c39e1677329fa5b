"""Operations that XLA leaves in many pieces, as one Pallas kernel for NVIDIA GPUs, through Triton, or few of XLA's.

In a pass over a few positions most of XLA's kernels take longer to start than to run. Each function here does the work
of one in ``models.attention`` or ``decoding.cache``, which serve every other device and define the derivatives;
``ways`` says which is taken on which GPU.
"""
