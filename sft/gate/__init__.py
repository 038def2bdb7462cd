"""The gate: what would ruin a model in silence is found on the tokens, before a GPU starts."""
