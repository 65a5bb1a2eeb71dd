"""Any Triton kernel, from what its compiled form says: no family, no measurement, no GPU.

`ir` reads the compiler's first representation into a tree; `programs` runs its scalar part for every program of a launch, which gives trip
counts, tiles and what they share; `facts` holds what the machine code says of one binary; `law` turns the three into time.
"""
