"""Everything that touches a GPU or its compiler: Triton kernels, what their machine code says, timing, sweeps and their replay."""
