"""`perfmodel explain`: why an operator takes as long as predicted: what binds, what would change it, what the number rests on."""

from __future__ import annotations

import sys

from perfmodel.cli import options, output
from perfmodel.cli.predict import commands
from perfmodel.predict.prediction import Prediction


def explain(found: Prediction, title: str, *, json_: bool, csv_: bool) -> None:
    """Print the explanation of a prediction; --csv gives its terms."""
    told = found.explain()
    if json_:
        output.write_json(told.as_dict())
    elif csv_:
        output.write_csv(told.terms, ("term", "alone_us", "share"))
    else:
        sys.stdout.write(f"{told}\n")


app = options.verb("Explain a prediction: the terms, what binds, what would have to change, and what the number rests on.")
commands(app, explain)
