"""How the shipped models are made from the measured rows of data/ (`make models`). Nothing that a user runs imports it."""
