"""The laws: what one iteration, one kernel or one message costs on given hardware. Pure, vectorised functions."""
