"""``qvpic bench``: what parts of this package cost, as ratios taken within one run."""
