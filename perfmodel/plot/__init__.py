"""Plots: functions that take ax= and return it. The only importers of matplotlib."""
