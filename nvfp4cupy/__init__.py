"""NVFP4 for NumPy and CuPy: quantizers, W4A4 GEMM, feed-forward, with bit-exact references."""
