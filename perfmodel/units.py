"""Unit factors. SI base units inside the library; microseconds for kernels at the edge; GB is decimal, GiB is named."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
TERA = 10**12
US_PER_S = 1e6
