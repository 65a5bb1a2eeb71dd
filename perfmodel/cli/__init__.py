"""The command line: one file a verb, loaded only when that verb is asked for."""
