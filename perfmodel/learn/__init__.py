"""What physics misses: the residual tree, its intervals, and the evaluation of both."""
